"""Kernels are built without a GPU: every variant compiles for each architecture that is supported, and says so if it cannot."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernels import build, catalog
from kernels.build import KernelsUnavailable, Variant

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
_CHECK = "import sys, kernels; sys.exit('torch' in sys.modules or any(m.startswith('cuda') for m in sys.modules))"


def _elsewhere(variant: Variant, arch: str) -> bool:
    """Other architectures differ in instructions, not in cluster counts or dtypes: bf16 stands for all; sm_80 has no clusters."""
    macros = dict(variant.macros)
    return macros.get("DTYPE", 0) == 0 and macros.get("C", 1) in ((1,) if arch == "sm_80" else (1, 8))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_variant_compiles(arch: str) -> None:  # spec 134
    variants = [v for v in catalog.all_variants() if arch == "sm_90" or _elsewhere(v, arch)]
    assert len(set(variants)) == len(variants) >= 20
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(lambda v: build.compile_cubin(v, arch), variants))
    assert all(code[:4] == b"\x7fELF" for code in codes)


def test_a_second_build_comes_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # spec 134
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path))
    variant = Variant.of("finish.cu", "finish_reasons", NT=128)
    first = build.cached_cubin(variant, "sm_90")

    def must_not_run(*_: object) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(build, "compile_cubin", must_not_run)
    assert build.cached_cubin(variant, "sm_90") == first
    with pytest.raises(AssertionError, match="compiled again"):
        build.cached_cubin(variant, "sm_80")
    with pytest.raises(AssertionError, match="compiled again"):
        build.cached_cubin(Variant.of("finish.cu", "finish_reasons", NT=64), "sm_90")


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(build.CACHE_VARIABLE, str(blocked / "below"))
    assert build.cached_cubin(Variant.of("finish.cu", "shift_history", NT=128), "sm_90")[:4] == b"\x7fELF"


def test_includes_are_put_in_once() -> None:
    text = build.source("sample.cu")
    assert '#include "' not in text
    assert text.count("struct alignas(16) Vec") == 1


def test_a_machine_without_a_device_is_told_why() -> None:
    try:
        build.load(Variant.of("finish.cu", "finish_reasons", NT=128))
    except KernelsUnavailable as error:
        assert "device" in str(error)
    else:
        pytest.skip("there is a CUDA device here")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    build._core.cache_clear()
    try:
        with pytest.raises(KernelsUnavailable, match="cuda-python"):
            build.compile_cubin(Variant.of("finish.cu", "finish_reasons", NT=128), "sm_90")
    finally:
        build._core.cache_clear()


def test_a_mistake_in_a_kernel_is_not_called_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "source", lambda _: "__global__ void broken( {")
    with pytest.raises(Exception, match="error") as caught:
        build.compile_cubin(Variant.of("finish.cu", "finish_reasons"), "sm_90")
    assert not isinstance(caught.value, KernelsUnavailable)


def test_the_public_list_is_complete_and_light() -> None:
    import kernels

    assert kernels.__all__ == sorted(kernels.__all__)
    for name in kernels.__all__:
        assert callable(getattr(kernels, name))
    with pytest.raises(AttributeError, match="sample_into"):
        kernels.no_such_kernel  # noqa: B018
    assert subprocess.run([sys.executable, "-c", _CHECK], check=False).returncode == 0
