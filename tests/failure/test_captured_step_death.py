"""Two of three services die with the captured step already waiting for its rows."""

from tests.captured_worker import Worker, check_a_death
from tests.step_emulation import Emulated


def test_services_die_while_the_graph_waits(tmp_path):  # spec R9 R12
    assert check_a_death(Worker(tmp_path, Emulated, "cpu", hold_after_s=0.02)) > 0
