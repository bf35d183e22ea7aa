"""p(token) from a row descriptor, so that no [R, V] probability tensor is needed."""

import numpy as np
import torch
from torch import Tensor

from kernels.plain import weights
from kernels.plain.live import SampleInputs
from kernels.plain.rows import RowDescriptor


def probability(descriptor: RowDescriptor, inputs: SampleInputs, tokens: Tensor) -> Tensor:
    """f32[R, n] of target ids i32[R, n]; 0 for a banned, unknown (-1) or filtered token and in dead and held rows.

    `inputs` are those that the descriptor was made from; its filters are not used again.
    """
    out = np.zeros(tuple(tokens.shape), dtype=np.float32)
    for i, row in enumerate(tokens.numpy()):
        live = inputs.adjusted(i)
        ids = inputs.masks.tokens(live.columns)
        for j, token in enumerate(row):
            for at in np.flatnonzero(ids == token):
                out[i, j] += weight(descriptor, i, live.x[at], int(live.columns[at])) / int(descriptor.mass[i])
    return torch.from_numpy(out)


def weight(descriptor: RowDescriptor, i: int, x: np.float32, column: int) -> int:
    """Mass, in units of 2^-44, of a column with adjusted logit x in row i; 0 if the row does not keep it."""
    threshold, tie = float(descriptor.threshold[i]), int(descriptor.tie_column[i])
    if int(descriptor.mass[i]) == 0 or not (x > threshold or (x == threshold and column <= tie)):
        return 0
    temperature, xmax = np.float32(descriptor.temperature[i]), np.float32(descriptor.xmax[i])
    if temperature == 0:
        return weights.UNIT
    return int(weights.masses(np.array([x]), xmax, temperature)[0])
