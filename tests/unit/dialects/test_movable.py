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
