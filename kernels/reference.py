"""The CPU meaning of every kernel, in torch and NumPy; the GPU kernels give the same results by the same rules."""

from kernels.plain.masks import apply_bitmask
from kernels.plain.overlay import Overlay, TokenList
from kernels.plain.penalties import Penalties, penalties
from kernels.plain.philox import Purpose, philox4x32, random_bits
from kernels.plain.rows import RowDescriptor, RowStatus, SampleResult, SampleRows, SampleStatus
from kernels.plain.sample import sample

__all__ = [
    "Overlay",
    "Penalties",
    "Purpose",
    "RowDescriptor",
    "RowStatus",
    "SampleResult",
    "SampleRows",
    "SampleStatus",
    "TokenList",
    "apply_bitmask",
    "penalties",
    "philox4x32",
    "random_bits",
    "sample",
]
