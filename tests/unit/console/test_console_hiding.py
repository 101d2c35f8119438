"""Viewers learn no queue's name or amounts from sentences about queues that they may not see."""

import msgspec
import pytest

from weft.cluster.http.viewers import ALL, ViewerRights
from weft.console.hiding import Hiding
from weft.console.picture import Picture, ShownPod
from weft.console.server import PodExplanation
from weft.core.engine.records import PreemptedFor
from weft.core.engine.team_queues import StatedAmount, over_limit_in_words
from weft.core.explain.explanation import Explanation, ObservedProgress, SeparatedPair
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


def kept_apart_from(application: str) -> Explanation:
    apart = (SeparatedPair(application, "H100", 1200.0),)
    progress = ObservedProgress("progress", 1.5, 2.0, 3.0, apart=apart)
    return Explanation(
        "team", "mine", "u1", "bound", "is bound on n", "weft", True, progress=progress
    )


def running(namespace: str, application: str) -> Picture:
    return Picture(0.0, pods={"u": ShownPod("u", namespace, "p", "n", application=application)})


@pytest.mark.parametrize("application", ["ml/Deployment/secret-server", "secret", "secret/2.0 b/c"])
def test_a_hidden_pods_application_is_not_named_where_a_pod_is_kept_apart_from_it(
    application: str,
) -> None:
    told, picture = kept_apart_from(application), running("ml", application)
    shown = PodExplanation.of(told, TEAM, picture, everything=False)
    line = "  kept apart from an application that you have no permission to see on H100 for another"
    assert [each for each in shown.lines if "apart" in each] == [f"{line} 20 min"]
    assert "secret" not in msgspec.json.encode(shown).decode()
    full = PodExplanation.of(told, Hiding(ALL, b"key"), picture, everything=True)
    assert f"kept apart from {application} on H100" in "".join(full.lines)


@pytest.mark.parametrize(
    ("application", "runs_in"),
    [("resnet", "team"), ("team/Deployment/server", "team"), ("team/Deployment/ended", "ml")],
)
def test_an_own_pods_application_is_named_where_a_pod_is_kept_apart_from_it(
    application: str, runs_in: str
) -> None:
    picture = running(runs_in, application)
    shown = PodExplanation.of(kept_apart_from(application), TEAM, picture, everything=False)
    assert f"  kept apart from {application} on H100 for another 20 min" in shown.lines


def test_a_rate_of_progress_is_no_name_and_a_workload_is_hidden_whole() -> None:
    assert "progress: 2 units/s, 3 if alone" in TEAM.text("progress: 2 units/s, 3 if alone")
    assert TEAM.text("of units/s, later") == "of a pod that you have no permission to see, later"
    hidden = "the peak of a pod that you have no permission to see is known"
    assert TEAM.text("the peak of ml/Job/train is known") == hidden
