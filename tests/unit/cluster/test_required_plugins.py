"""Weft is added to what containerd's validator requires of a pod, and nothing is taken away.

The rules are those of containerd/nri's default validator: a container's own list counts before the
pod's, the pod's before the bare one; a text that is no list refuses the container.
"""

import pytest

from weft.cluster.control.required_plugins import required_plugins

BARE = "required-plugins.noderesource.dev"
POD = f"{BARE}/pod"


@pytest.mark.parametrize("present", [None, {}, {"a": "b"}, {POD: ""}, {POD: "null"}])
def test_a_pod_that_requires_nobody_requires_weft(present: dict[str, str] | None) -> None:
    assert required_plugins(present) == {POD: "[weft]"}


@pytest.mark.parametrize(
    ("text", "merged"),
    [
        ("[other]", '["other","weft"]'),
        ('["a", "b"]', '["a","b","weft"]'),
        ("- a\n- b\n", '["a","b","weft"]'),
        ("[weft]", "[weft]"),
        ("[other, weft]", "[other, weft]"),
        ("[]", '["weft"]'),
        ("weft", "weft"),  # no list: the runtime refuses it
        ("[weft", "[weft"),
        ("{a: b}", "{a: b}"),
        ("[" + "a, " * 5000 + "]", "[weft]"),
    ],
)
def test_weft_joins_who_is_required_already(text: str, merged: str) -> None:
    assert required_plugins({POD: text}) == {POD: merged}
    assert required_plugins({BARE: text}) == {POD: merged}  # which would not count beside ours


def test_a_containers_own_list_does_not_go_round_weft() -> None:
    own = f"{BARE}/container.main"
    present = {POD: "[a]", BARE: "[b]", own: "[]", "x/container.y": "[]"}
    assert required_plugins(present) == {POD: '["a","weft"]', own: '["weft"]'}
