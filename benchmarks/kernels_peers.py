"""The peers of the kernel table: torch, xgrammar's mask kernels, FlashInfer's samplers (through libpeers.so)."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _p(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


class Peers:
    """Calls into libpeers.so on torch tensors; the scratch tensors of one shape are made once."""

    def __init__(self, library: str, rows: int, width: int) -> None:
        self.lib: Any = ctypes.CDLL(library)
        self.rows, self.width = rows, width
        self.floats = torch.empty((rows, width), device="cuda")
        self.probs = torch.empty((rows, width), device="cuda")
        self.work = torch.empty(1 << 22, dtype=torch.uint8, device="cuda")
        self.states = torch.zeros(1 << 22, dtype=torch.uint8, device="cuda")
        self.out = torch.empty(rows, dtype=torch.int32, device="cuda")
        self.valid = torch.empty(rows, dtype=torch.bool, device="cuda")

    def check(self, code: int) -> None:
        if code:
            raise RuntimeError(f"a peer's kernel failed with CUDA error {code}")

    def mask(self, logits: torch.Tensor, mask: torch.Tensor | None) -> None:
        if mask is not None:
            call = self.lib.xg_mask_f32 if logits.dtype == torch.float32 else self.lib.xg_mask_bf16
            self.check(call(_p(logits), _p(mask), logits.shape[1], mask.shape[1], logits.shape[0], _stream()))

    def softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """FlashInfer takes fp32 only: other logits are cast first."""
        if logits.dtype != torch.float32:
            self.floats.copy_(logits)
            logits = self.floats
        self.check(
            self.lib.fi_softmax(
                _p(logits), _p(self.probs), self.rows, self.width, _p(self.work), ctypes.c_size_t(self.work.numel()), _stream()
            )
        )
        return self.probs

    def joint(self, logits: torch.Tensor, k: int, p: float) -> None:
        probs, seed = self.softmax(logits), ctypes.c_uint64(7)
        self.check(
            self.lib.fi_top_k_top_p(
                _p(probs), _p(self.out), _p(self.valid), self.rows, self.width, k, ctypes.c_float(p), seed, _stream()
            )
        )

    def top_k_first(self, logits: torch.Tensor, k: int, p: float) -> None:
        """Its newest path: radix top-k, softmax of k values, top-p among them, ids gathered."""
        ids = torch.empty((self.rows, k), dtype=torch.int32, device="cuda")
        values = torch.empty((self.rows, k), dtype=logits.dtype, device="cuda")
        call = self.lib.fi_largest_f32 if logits.dtype == torch.float32 else self.lib.fi_largest_bf16
        self.check(call(_p(logits), _p(ids), _p(values), self.rows, k, self.width, _p(self.states), _stream()))
        probs = torch.softmax(values.float(), -1)
        self.check(
            self.lib.fi_top_p(
                _p(probs), _p(self.out), _p(self.valid), self.rows, k, ctypes.c_float(p), ctypes.c_uint64(7), _stream()
            )
        )
        ids.gather(1, self.out.view(-1, 1).long())

    def top_p(self, logits: torch.Tensor, p: float) -> None:
        probs = self.softmax(logits)
        self.check(
            self.lib.fi_top_p(
                _p(probs), _p(self.out), _p(self.valid), self.rows, self.width, ctypes.c_float(p), ctypes.c_uint64(7), _stream()
            )
        )

    def min_p(self, logits: torch.Tensor, p: float) -> None:
        probs = self.softmax(logits)
        self.check(
            self.lib.fi_min_p(
                _p(probs), _p(self.out), _p(self.valid), self.rows, self.width, ctypes.c_float(p), ctypes.c_uint64(7), _stream()
            )
        )

    def draw(self, logits: torch.Tensor, p: float, seed: int) -> None:
        """One draw a row into ``out``, from the shortest prefix of mass ``p`` or from all."""
        probs, state = self.softmax(logits), ctypes.c_uint64(seed)
        shared = (_p(probs), _p(self.out), _p(self.valid), self.rows, self.width)
        if p < 1:
            self.check(self.lib.fi_top_p(*shared, ctypes.c_float(p), state, _stream()))
        else:
            self.check(self.lib.fi_sample(*shared, state, _stream()))

    def plain(self, logits: torch.Tensor) -> None:
        probs = self.softmax(logits)
        self.check(
            self.lib.fi_sample(_p(probs), _p(self.out), _p(self.valid), self.rows, self.width, ctypes.c_uint64(7), _stream())
        )


def triton_mask(site: str) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """xgrammar's Triton kernel, from its file alone (the package would import its engine)."""
    path = Path(site) / "xgrammar/kernels/apply_token_bitmask_inplace_triton.py"
    spec = importlib.util.spec_from_file_location("xgrammar_triton", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    call: Callable[[torch.Tensor, torch.Tensor], None] = module.apply_token_bitmask_inplace_triton
    return call


def torch_sampler(logits: torch.Tensor, allowed: torch.Tensor | None, k: int, p: float) -> torch.Tensor:
    """Mask, top-k, top-p and draw by torch operations (exponential race in place of multinomial, which synchronises)."""
    x = logits.float()
    if allowed is not None:
        x = x.masked_fill(~allowed, float("-inf"))
    values, ids = torch.topk(x, k, dim=-1) if k else torch.sort(x, dim=-1, descending=True)
    probs = torch.softmax(values, -1)
    if p < 1:
        probs = probs.masked_fill(probs.cumsum(-1) - probs >= p, 0.0)
    chosen = (probs / torch.empty_like(probs).exponential_()).argmax(-1, keepdim=True)
    return ids.gather(1, chosen)
