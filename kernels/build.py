"""How kernels are built: variants by macro, NVRTC through cuda.core, a program cache on disk. Nothing else knows.

A variant's source is its .cu file with the .cuh files put in place of their includes, so that the cache key covers
every byte; no CUDA header is needed. Raises KernelsUnavailable (with the reason) where NVRTC or a driver is missing.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import re
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "cuda"
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)
CACHE_VARIABLE = "MASKSTREAM_KERNEL_CACHE"
LINES = "MASKSTREAM_KERNEL_LINES"
"""Set: kernels carry the line numbers of `source(file)`, for profilers and sanitizers. They have a cache of their own."""
_IMPORTING = threading.Lock()


class KernelsUnavailable(RuntimeError):
    """The CUDA kernels cannot be built or run here; the message says why, the reference does the work."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel of one source file under some macros."""

    file: str
    kernel: str
    macros: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, file: str, kernel: str, **macros: int) -> Variant:
        return cls(file, kernel, tuple(sorted(macros.items())))


def source(file: str) -> str:
    """The text of a .cu file, each .cuh put in once, where it is first included."""
    seen: set[str] = set()

    def put_in(match: re.Match[str]) -> str:
        if match[1] in seen:
            return ""
        seen.add(match[1])
        return _INCLUDE.sub(put_in, (SOURCES / match[1]).read_text())

    return _INCLUDE.sub(put_in, (SOURCES / file).read_text())


def compile_cubin(variant: Variant, arch: str) -> bytes:
    """Machine code for an arch such as "sm_90"; needs NVRTC, no driver. Raises KernelsUnavailable without NVRTC."""
    core = _core()
    options = core.ProgramOptions(
        arch=arch, std="c++17", define_macro=[(k, str(v)) for k, v in variant.macros] or None, device_int128=True,
        lineinfo=LINES in os.environ, name=variant.file,
    )  # fmt: skip
    try:
        program = core.Program(source(variant.file), "c++", options)
    except Exception as error:
        raise KernelsUnavailable(f"NVRTC cannot be used: {error}") from error
    return bytes(program.compile("cubin").code)


def cached_cubin(variant: Variant, arch: str) -> bytes:
    """`compile_cubin` behind the disk cache; a cache that cannot be written is done without."""
    text = "\0".join((source(variant.file), repr(variant), arch, _compiler_version(), str(LINES in os.environ)))
    path = cache_folder() / f"{variant.kernel}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.cubin"
    if path.is_file():
        return path.read_bytes()
    code = compile_cubin(variant, arch)
    _store(path, code)
    return code


def cache_folder() -> Path:
    """Where compiled kernels lie: MASKSTREAM_KERNEL_CACHE, or the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(base) / "maskstream" / "kernels"


@functools.cache
def load(variant: Variant) -> int:
    """CUfunction of a variant on the current device, allowed all the shared memory there is.

    Loading takes the module lock: do it for every variant before a graph is captured.
    """
    from cuda.bindings import driver

    kernel = _kernel(variant)
    result = driver.cuKernelGetFunction(driver.CUkernel(int(kernel.handle)))
    check(result)
    function, attributes = result[1], driver.CUfunction_attribute
    static = driver.cuFuncGetAttribute(attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)
    check(static)
    most = _core().Device().properties.max_shared_memory_per_block_optin - int(static[1])
    check(driver.cuFuncSetAttribute(function, attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most))
    return int(function)


@functools.cache
def _kernel(variant: Variant) -> Any:
    core = _core()
    try:
        device = core.Device()
        device.set_current()
        major, minor = device.compute_capability
    except Exception as error:
        raise KernelsUnavailable(f"no CUDA device can be used: {error}") from error
    code = cached_cubin(variant, f"sm_{major}{minor}")
    return core.ObjectCode.from_cubin(code, name=variant.file).get_kernel(variant.kernel)


def check(result: tuple[Any, ...]) -> None:
    """Raises RuntimeError for the error code of a driver call."""
    if int(result[0]) != 0:
        raise RuntimeError(f"CUDA driver call failed: {result[0]!r}")


@functools.cache
def _core() -> Any:
    with _IMPORTING:  # a second thread would meet the package half imported
        try:
            import cuda.core as core
        except Exception as error:
            raise KernelsUnavailable(f"cuda-python cannot be imported: {error}") from error
        return core


@functools.cache
def _compiler_version() -> str:
    try:
        return importlib.metadata.version("nvidia-cuda-nvrtc")
    except importlib.metadata.PackageNotFoundError:
        return "system"


def _store(path: Path, code: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        os.replace(name, path)
    except OSError:
        return  # only speed is lost: the next process compiles again
