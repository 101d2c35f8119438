"""Viewers learn no queue's name or amounts from sentences about queues that they may not see."""

from weft.cluster.http.viewers import ViewerRights
from weft.console.hiding import Hiding
from weft.core.engine.records import PreemptedFor
from weft.core.engine.team_queues import StatedAmount, over_limit_in_words
from weft.core.explain.sentences import preempted_in_words

TEAM = Hiding(ViewerRights(everywhere=False, namespaces=frozenset({"team"})), b"key")


def test_a_queue_that_reclaims_its_guarantee_is_not_named() -> None:
    why = PreemptedFor("uid", "acme/job-0", 0, 0, queue="acme")
    shown = TEAM.text(preempted_in_words(why))
    assert "acme" not in shown
    assert shown.endswith(": another queue reclaims its guarantee")


def test_a_hidden_pods_uid_is_hidden_with_its_name() -> None:
    text = "free n1 GPU 0: end pod {} (UID 8f14-e45f); end pod team/a (UID 77de-68da)"
    shown = "free n1 GPU 0: end a pod that you have no permission to see; end pod team/a"
    assert TEAM.text(text.format("ml/b")) == f"{shown} (UID 77de-68da)"


def test_a_uid_without_a_name_is_hidden() -> None:
    """Nobody can say whose it is."""
    shown = TEAM.text("free n1 GPU 0: end pod UID 8f14-e45f")
    assert shown == "free n1 GPU 0: end a pod that you have no permission to see"


def test_names_of_digits_are_hidden_and_counts_of_nodes_are_not() -> None:
    assert "456" not in TEAM.text("2 GPUs held by pods of dead nodes: 123/456 for 3 h")
    for text in ("0/12 nodes: 12 full", "3/4 GPU nodes fit", "has 1/2 of GPU 0 by NVIDIA's plugin"):
        assert TEAM.text(text) == text


def test_a_queue_at_its_limit_is_not_named_however_large_its_amounts_are() -> None:
    held = StatedAmount("gpuMemoryMib", "MiB of GPU memory", 1, 81_920_000, 90_000_000)
    shown = TEAM.text(over_limit_in_words("acme", held, 8_192_000))
    assert shown.startswith("its queue is at a limit of MiB of GPU memory; this pod asks for")
    raised = TEAM.text("raise limits.gpuMemoryMib of queue acme from 9e+07 to 9.0112e+07")
    assert raised == "raise limits.gpuMemoryMib of its queue"
    raised = TEAM.text("raise limits.models[Tesla T4] of queue acme from 2 to 3")
    assert raised == "raise limits.models[Tesla T4] of its queue"
