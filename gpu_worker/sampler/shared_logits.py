"""SharedLogits: a buffer of logits and one of tokens that an engine's process and a sampler's process both see.

Made by the engine, opened by the sampler from what ``handle`` says. On a GPU it is device memory opened through a CUDA IPC handle,
and each side has an event that it records on its stream: ``ready`` behind the forward, ``done`` behind the sampler. A wait is
enqueued after the other side has said that it has recorded. On the CPU it is a memory file, and what was said is enough.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
ALIGNMENT = 256
HANDLE_BYTES = 64


class SharedShape(msgspec.Struct, frozen=True):
    """``rows`` of ``columns`` logits of ``dtype``, and a token int32 for each row behind them."""

    rows: int
    columns: int
    dtype: str

    @property
    def logits_bytes(self) -> int:
        size = self.rows * self.columns * DTYPES[self.dtype].itemsize
        return -(-size // ALIGNMENT) * ALIGNMENT

    @property
    def size(self) -> int:
        return self.logits_bytes + 4 * self.rows

    def views(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """logits [rows, columns] and tokens int32 [rows] in a uint8 tensor of ``size`` bytes."""
        dtype = DTYPES[self.dtype]
        logits = memory[: self.rows * self.columns * dtype.itemsize].view(dtype).view(self.rows, self.columns)
        return logits, memory[self.logits_bytes : self.size].view(torch.int32)


class SharedLogits(Protocol):
    """One side's face of the buffer. ``handle``: what the other side opens it by; ``event``: this side's event."""

    logits: Tensor
    tokens: Tensor
    handle: bytes
    event: bytes

    def record(self) -> None:
        """Records this side's event on the current stream."""

    def watch(self, event: bytes) -> None:
        """Takes the other side's event over."""

    def wait(self) -> None:
        """Makes the current stream wait for the other side's event."""

    def close(self) -> None:
        """Gives the memory back; the tensors are empty from here on."""


class HostLogits:
    """In a memory file, whose descriptor the child process inherits. ``handle`` is its number there."""

    def __init__(self, shape: SharedShape, handle: bytes = b"") -> None:
        self._file = int(handle) if handle else os.memfd_create("maskstream-logits", os.MFD_CLOEXEC)
        os.ftruncate(self._file, shape.size)
        memory = torch.frombuffer(mmap.mmap(self._file, shape.size), dtype=torch.uint8)
        self.logits, self.tokens = shape.views(memory)
        self.handle, self.event = str(self._file).encode(), b""

    def record(self) -> None:
        """Writes to the memory are there when the message about them is."""

    def watch(self, event: bytes) -> None:
        """There is no event."""

    def wait(self) -> None:
        """What was said has been done."""

    def close(self) -> None:
        self.logits = self.tokens = torch.empty(0)  # the mapping goes with its last view
        os.close(self._file)


class CudaLogits:
    """In device memory of its own allocation, since an IPC handle names a whole one. Both processes use the current device."""

    def __init__(self, shape: SharedShape, handle: bytes = b"") -> None:
        from cuda.bindings import runtime

        self._runtime, self._owned = runtime, not handle
        torch.cuda.init()
        torch.cuda.current_stream()  # the device's context is there from here on
        if handle:
            opened = runtime.cudaIpcMemHandle_t()
            ctypes.memmove(opened.getPtr(), handle, HANDLE_BYTES)
            self._address = int(_checked(runtime.cudaIpcOpenMemHandle(opened, runtime.cudaIpcMemLazyEnablePeerAccess)))
        else:
            self._address = int(_checked(runtime.cudaMalloc(shape.size)))
            handle = ctypes.string_at(_checked(runtime.cudaIpcGetMemHandle(self._address)).getPtr(), HANDLE_BYTES)
        self.handle = handle
        self.logits, self.tokens = shape.views(torch.as_tensor(_Span(self._address, shape.size), device="cuda"))
        self._own: Any = torch.cuda.Event(enable_timing=False, interprocess=True)
        self._own.record()
        self.event: bytes = self._own.ipc_handle()
        self._other: Any = None

    def record(self) -> None:
        self._own.record()

    def watch(self, event: bytes) -> None:
        self._other = torch.cuda.Event.from_ipc_handle(torch.cuda.current_device(), event)

    def wait(self) -> None:
        self._other.wait()

    def close(self) -> None:
        torch.cuda.synchronize()
        self.logits = self.tokens = torch.empty(0)
        _checked(self._runtime.cudaFree(self._address) if self._owned else self._runtime.cudaIpcCloseMemHandle(self._address))


class _Span:
    """Bytes of device memory as torch takes them over, without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _checked(answer: tuple[Any, ...]) -> Any:
    """The value of a runtime call. Raises RuntimeError with the name of its error."""
    if int(answer[0]) != 0:
        raise RuntimeError(f"CUDA: {answer[0].name}")
    return answer[1] if len(answer) > 1 else None


def make(shape: SharedShape, device: str, handle: bytes = b"") -> SharedLogits:
    """The engine's side without a handle, the sampler's with the engine's."""
    return CudaLogits(shape, handle) if device == "cuda" else HostLogits(shape, handle)
