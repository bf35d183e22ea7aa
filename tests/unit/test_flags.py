"""Flags and their environment twins: rivals exclude each other only where both are given."""

import pytest

from shared.errors import ConfigError
from shared.flags import Flags


def _guide_flags() -> Flags:
    flags, rivals = Flags("a program", "about it", "MASKSTREAM_TEST"), []
    flags.add("--schema", "a file", rivals=rivals)
    flags.add("--json", "a switch", rivals=rivals, default=False, action="store_true")
    flags.add("--choice", "a list", rivals=rivals, default=[], action="append")
    return flags


@pytest.mark.parametrize("argv", [[], ["--schema", "x"], ["--json"], ["--choice", "a", "--choice", "b"]])
def test_one_rival_or_none_is_fine(argv):
    _guide_flags().parse(argv, {})


def test_two_rivals_are_refused_by_name():
    with pytest.raises(ConfigError, match="--schema and --choice exclude each other"):
        _guide_flags().parse(["--schema", "x", "--choice", "a"], {})
