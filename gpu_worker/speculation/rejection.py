"""Rejection: a draft that was drawn from a distribution of its own stands with the probability that leaves the target's unchanged.

Everything is compared in integers, by the reference kernels. The text is not the one without drafts, its distribution is: the bits
of acceptance, of the residual and of the bonus token are of purposes of their own, at the offset of their output position.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_worker.descriptor import LaunchResult
from kernels.reference import Distribution, SampleInputs, reject


def reject_row(result: LaunchResult, inputs: SampleInputs, slot: int, drafted: Sequence[tuple[int, Distribution]]) -> int | None:
    """Decides one row of a launch: writes its token and status to ``result`` and gives which of ``drafted`` it is.

    ``inputs`` are the rows of the node where the slot stands, a row a slot; ``drafted`` the tokens of its children, each with what
    it was drawn from. A row that allows nothing gives no token.
    """
    live = inputs.live(slot)
    result.status[slot] = int(live.status)
    if live.kept is None:
        return None
    p = Distribution.of(live.kept, inputs.masks)
    result.token[slot], branch = reject(p, drafted, lambda purpose, at: inputs.bits(slot, purpose, at))
    return branch
