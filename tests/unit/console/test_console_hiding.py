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


def test_a_queue_at_its_limit_is_not_named_however_large_its_amounts_are() -> None:
    held = StatedAmount("gpuMemoryMib", "MiB of GPU memory", 1, 81_920_000, 90_000_000)
    shown = TEAM.text(over_limit_in_words("acme", held, 8_192_000))
    assert shown.startswith("its queue is at a limit of MiB of GPU memory; this pod asks for")
    raised = TEAM.text("raise limits.gpuMemoryMib of queue acme from 9e+07 to 9.0112e+07")
    assert raised == "raise limits.gpuMemoryMib of its queue"
    raised = TEAM.text("raise limits.models[Tesla T4] of queue acme from 2 to 3")
    assert raised == "raise limits.models[Tesla T4] of its queue"
