"""Parameters of the slots: stacked, owned, and never a view that changes under the device."""

import numpy as np
import pytest

from gpu_worker.sampler.slot_params import SlotSamplingParams
from shared.sampling_params import MAX_TOP_K, RowParams, SamplingParams


def test_rows_of_a_launch():  # spec 68, 135
    params = SlotSamplingParams(3)
    params.set(1, 5, SamplingParams(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1).resolve(), -3, 1 << 62)
    rows = params.rows(np.array([0, 4, 0], np.int64))
    assert rows.temperature.tolist() == [1.0, 0.5, 1.0]
    assert rows.top_k.tolist() == [0, 7, 0]
    assert rows.top_p.tolist() == pytest.approx([1.0, 0.9, 1.0])
    assert rows.min_p.tolist() == pytest.approx([0.0, 0.1, 0.0])
    assert rows.seed.tolist() == [0, -3, 0]
    assert rows.offset.tolist() == [0, (1 << 62) + 4, 0]  # spec 88, R18: first offset + output position


def test_greedy_rows_are_neutral():  # spec 68
    params = SlotSamplingParams(1)
    params.set(0, 5, SamplingParams(top_k=1, temperature=0.9, min_p=0.5).resolve(), 0, 0)
    rows = params.rows(np.zeros(1, np.int64))
    assert (rows.temperature[0], rows.top_k[0], rows.top_p[0], rows.min_p[0]) == (0.0, 0, 1.0, 0.0)


def test_the_largest_top_k_fits():  # spec 82
    params = SlotSamplingParams(1)
    params.set(0, 5, RowParams(1.0, MAX_TOP_K, 1.0, 0.0), 0, 0)
    assert params.rows(np.zeros(1, np.int64)).top_k[0] == 2**31 - 1


def test_owners_are_checked():  # spec 88, 135
    params = SlotSamplingParams(2)
    params.set(1, 5, RowParams(1.0, 0, 1.0, 0.0), 0, 0)
    params.check_owners(np.array([0, 5]))
    for owners in ([0, 4], [5, 5]):
        with pytest.raises(ValueError, match="belongs to"):
            params.check_owners(np.array(owners))
    params.set(1, 6, RowParams(1.0, 0, 1.0, 0.0), 0, 0)
    with pytest.raises(ValueError, match="slot 1 belongs to 6, not to 5"):
        params.check_owners(np.array([0, 5]))


def test_a_launch_keeps_its_own_copy():
    params = SlotSamplingParams(1)
    params.set(0, 5, RowParams(0.5, 3, 0.5, 0.0), 9, 0)
    rows = params.rows(np.zeros(1, np.int64))
    params.set(0, 6, RowParams(1.5, 4, 1.0, 0.1), 1, 7)
    assert (rows.temperature[0], rows.top_k[0], rows.seed[0], rows.offset[0]) == (0.5, 3, 9, 0)
