"""Profiles of hollow pods, as their annotations say them."""

import math

import pytest

from fakes.hollow_profile import HollowProfile, read_profile
from weft.model import BadInputError


def read(**marks: str) -> HollowProfile:
    return read_profile({f"weft.dev/hollow-{k.replace('_', '-')}": v for k, v in marks.items()})


def test_nothing_said_runs_for_ever_with_all_it_was_given() -> None:
    for silent in (None, {}, {"example.com/other": "x"}):
        assert read_profile(silent) == HollowProfile()
    assert HollowProfile().memory_at(5, 3000) == 3000
    assert HollowProfile().next_change_s(0) == math.inf


def test_everything_said() -> None:
    profile = read(
        start_up_s="4.5", run_s="60", memory_mib="0:500, 10:3000", exit_code="1", stop_s="5"
    )
    assert profile == HollowProfile(4.5, 60, ((0, 500), (10, 3000)), 1, 5)
    assert read(stop_s="never").stop_s is None
    assert read(memory_mib="3000").memory_mib == ((0, 3000),)


def test_memory_is_that_of_the_last_step() -> None:
    profile = read(memory_mib="2:500, 10:3000")
    assert [profile.memory_at(second, 9) for second in (0, 1.9, 2, 9, 10, 99)] == [
        0,
        0,
        500,
        500,
        3000,
        3000,
    ]
    assert [profile.next_change_s(second) for second in (0, 2, 10)] == [2, 10, math.inf]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("run_s", "soon", "weft.dev/hollow-run-s: 'soon' is no number of 0 or more"),
        ("run_s", "-1", "'-1' is no number of 0 or more"),
        ("start_up_s", "inf", "'inf' is no number of 0 or more"),
        ("stop_s", "nan", "'nan' is no number of 0 or more"),
        ("exit_code", "256", "'256' is no exit code, 0 to 255"),
        ("exit_code", "1.5", "'1.5' is no exit code, 0 to 255"),
        ("memory_mib", "1.5", "'1.5' is not a whole number of MiB"),
        ("memory_mib", "5:1, 5:2", "the seconds must grow from step to step"),
        ("memory_mib", "5:1, 2:2", "the seconds must grow from step to step"),
        ("memory_mib", "", "'' is no number of 0 or more"),
        ("runs", "1", "weft.dev/hollow-runs: is not known to the hollow kubelet"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, text: str, why: str) -> None:
    with pytest.raises(BadInputError, match=r".") as raised:
        read(**{name: text})
    assert why in str(raised.value)
