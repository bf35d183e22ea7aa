"""Descriptors and results that do nothing: what the last resort and a failed launch are made of."""

import numpy as np

from gpu_worker.descriptor import Descriptor, LaunchResult, SlotAction


def test_a_holding_descriptor():
    holding = Descriptor.holding(5, 3, 9)
    assert (holding.launch, holding.rows, holding.overlay) == (5, None, None)
    assert holding.action.tolist() == [SlotAction.HOLD] * 3
    assert holding.bitmask.shape == (3, 9)
    assert not holding.bitmask.any()  # nothing is allowed
    assert holding.epoch.tolist() == [0, 0, 0]  # nobody's


def test_a_result_of_nothing():
    nothing = LaunchResult.nothing(5, 3)
    assert nothing.launch == 5
    assert nothing.token.tolist() == [-1] * 3
    assert nothing.action.tolist() == [SlotAction.IDLE] * 3
    assert nothing.error is None


def test_results_share_no_arrays():
    one, other = LaunchResult.nothing(1, 2), LaunchResult.nothing(2, 2)
    one.token[0] = 5
    assert other.token.tolist() == [-1, -1]
    assert one.token.dtype == np.int32


def test_actions_begin_with_the_samplers_row_status():
    assert (SlotAction.UNGUIDED, SlotAction.GUIDED, SlotAction.HOLD, SlotAction.IDLE) == (0, 1, 2, 3)
