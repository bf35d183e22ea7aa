"""Banned logits on memory that cannot be read: an access would end the process with an illegal address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from kernels.build import check
from kernels.sample import CLUSTERS
from tests.gpu import cases
from tests.gpu.test_sample import launch

pytestmark = pytest.mark.gpu
ROWS, WIDTH = 24, 262144


def _value(result: Any) -> Any:
    check(result)
    return result[1]


@contextmanager
def half_mapped(row_bytes: int) -> Iterator[tuple[int, int]]:
    """Addresses for ROWS rows a stride apart: the first half of each row lies on memory, the second half on none. Yields where the
    first row begins and the stride in bytes."""
    from cuda.bindings import driver

    place = driver.CUmemAllocationProp()
    place.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    place.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    place.location.id = torch.cuda.current_device()
    grain = int(
        _value(
            driver.cuMemGetAllocationGranularity(place, driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM)
        )
    )
    size, base = 2 * grain * ROWS, 0
    base = int(_value(driver.cuMemAddressReserve(size, 0, driver.CUdeviceptr(0), 0)))
    access = driver.CUmemAccessDesc()
    access.location = place.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    handles = []
    for row in range(ROWS):
        handles.append(_value(driver.cuMemCreate(grain, place, 0)))
        at = driver.CUdeviceptr(base + 2 * grain * row)
        check(driver.cuMemMap(at, grain, 0, handles[-1], 0))
        check(driver.cuMemSetAccess(at, grain, [access], 1))
    try:
        yield base + grain - row_bytes // 2, 2 * grain
    finally:
        torch.cuda.synchronize()
        for row, handle in enumerate(handles):
            check(driver.cuMemUnmap(driver.CUdeviceptr(base + 2 * grain * row), grain))
            check(driver.cuMemRelease(handle))
        check(driver.cuMemAddressFree(driver.CUdeviceptr(base), size))


class _Memory:
    """Device memory as torch takes it from other libraries."""

    def __init__(self, address: int, shape: tuple[int, int], stride_bytes: int, kind: str, item_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": kind, "data": (address, False), "strides": (stride_bytes, item_bytes), "version": 3,
        }  # fmt: skip


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_logits_that_are_banned_are_never_read(dtype: str) -> None:  # spec R17, 23
    rng = np.random.default_rng(14)
    half = WIDTH // 2
    logits, rows = cases.logits(rng, "middle", ROWS, WIDTH, cases.DTYPES[dtype]), cases.rows(rng, ROWS, "mixed")
    bitmask = cases.bitmask(rng, "half", ROWS, WIDTH)
    assert bitmask is not None
    bitmask[:, half // 32 :] = 0
    item = logits.element_size()
    with half_mapped(WIDTH * item) as (address, stride):
        kind = "<i2" if item == 2 else "<f4"
        memory = torch.as_tensor(_Memory(address, (ROWS, WIDTH), stride, kind, item), device="cuda").view(cases.DTYPES[dtype])
        memory[:, :half].copy_(logits[:, :half])
        for cluster in CLUSTERS:
            want = launch(logits, rows, vocab_size=WIDTH, bitmask=bitmask, cluster=cluster)
            got = launch(memory, rows, vocab_size=WIDTH, bitmask=bitmask, cluster=cluster)
            assert torch.equal(got.token, want.token) and torch.equal(got.status, want.status)
        greedy = cases.rows(rng, ROWS, "greedy")
        assert torch.equal(
            launch(memory, greedy, vocab_size=WIDTH, bitmask=bitmask, greedy_only=True).token,
            launch(logits, greedy, vocab_size=WIDTH, bitmask=bitmask, greedy_only=True).token,
        )
        del memory
