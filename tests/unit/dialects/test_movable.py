"""A pod says whether it may be moved, in one of two words."""

import pytest
from manifests import ask, parsed

MOVABLE = "weft.dev/movable"


@pytest.mark.parametrize(("text", "told"), [("true", 0), ("false", 0), ("yes", 1), ("", 1)])
def test_another_word_is_ignored_and_said(text: str, told: int) -> None:
    request = parsed(ask("weft.dev/gpu-memory", 1), annotations={MOVABLE: text})
    notes = [note for note in request.warnings if MOVABLE in note]
    said = f"annotation {MOVABLE} is ignored: {text!r} is neither true nor false"
    assert notes == [said] * told


COST = "weft.dev/restart-cost"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("1m30s", 90),
        (" 2h ", 7_200),
        ("checkpointed", 60),
        ("366d", 31622400),
    ],
)
def test_a_restart_cost_is_a_duration_or_a_word(text: str, seconds: int) -> None:
    request = parsed(ask("weft.dev/gpu-memory", 1), annotations={COST: text})
    assert request.restart_s == seconds
    assert not [note for note in request.warnings if COST in note]


@pytest.mark.parametrize("text", ["-1", "soon", "367d", "1.5", "9" * 200, "1m 30s", "Checkpointed"])
def test_another_restart_cost_is_ignored_and_said(text: str) -> None:
    request = parsed(ask("weft.dev/gpu-memory", 1), annotations={COST: text})
    assert not isinstance(request.restart_s, int)
    (note,) = [note for note in request.warnings if COST in note]
    assert "neither checkpointed nor a duration" in note


def test_who_says_nothing_of_it_has_none() -> None:
    assert not isinstance(parsed(ask("weft.dev/gpu-memory", 1)).restart_s, int)
