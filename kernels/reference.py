"""The CPU meaning of every kernel, in torch and NumPy; the GPU kernels give the same results by the same rules."""

from kernels.plain.beam import BeamParams, BeamState, BeamStep, beam_step, finalize_beams
from kernels.plain.counts import reparent_counts, reset_counts, update_counts, update_top_p_decay
from kernels.plain.distribution import Distribution
from kernels.plain.finish import FinishReason, FinishResult, StopWords, finish_reasons, shift_history
from kernels.plain.live import SampleInputs
from kernels.plain.masks import apply_bitmask
from kernels.plain.overlay import Overlay, TokenList
from kernels.plain.penalties import Penalties, penalties
from kernels.plain.philox import Purpose, philox4x32, random_bits
from kernels.plain.probability import probability
from kernels.plain.rows import RowDescriptor, RowStatus, SampleResult, SampleRows, SampleStatus
from kernels.plain.sample import sample
from kernels.plain.verify import Drafts, VerifyResult, reject, verify

__all__ = [
    "BeamParams",
    "BeamState",
    "BeamStep",
    "Distribution",
    "Drafts",
    "FinishReason",
    "FinishResult",
    "Overlay",
    "Penalties",
    "Purpose",
    "RowDescriptor",
    "RowStatus",
    "SampleInputs",
    "SampleResult",
    "SampleRows",
    "SampleStatus",
    "StopWords",
    "TokenList",
    "VerifyResult",
    "apply_bitmask",
    "beam_step",
    "finalize_beams",
    "finish_reasons",
    "penalties",
    "philox4x32",
    "probability",
    "random_bits",
    "reject",
    "reparent_counts",
    "reset_counts",
    "sample",
    "shift_history",
    "update_counts",
    "update_top_p_decay",
    "verify",
]
