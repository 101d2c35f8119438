"""Pods of the API become events of the engine."""

from typing import Any

import msgspec
from msgspec.structs import replace

from fakes.api_clock import VirtualClock
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pods import PodView
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import PodAdded, PodGone, PodSeenBound
from weft.core.ledger import Ledger
from weft.dialects.dialect import DialectSettings
from weft.kube.clock import Clock
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.kube.watch import Added
from weft.testing import AGENT_BY_NAME

GPUS = '{"gpus":[{"index":0,"memory_mib":16000},{"index":1,"memory_mib":16000}]}'


def pod(resources: dict[str, Any] | None = None, phase: str = "", **spec: Any) -> Pod:
    asks = {"limits": resources or {"weft.dev/gpu-memory": 4000}}
    whole = {
        "metadata": {"name": "a", "namespace": "d", "uid": "u"},
        "spec": {"schedulerName": "weft", "containers": [{"name": "c", "resources": asks}], **spec},
        "status": {"phase": phase},
    }
    return msgspec.convert(whole, Pod)


def view(
    *,
    deciding: bool = True,
    ledger: Ledger | None = None,
    heard: list[str] | None = None,
    clock: Clock | None = None,
) -> PodView:
    nodes = NodeView()
    told = {
        "metadata": {
            "name": "n",
            "annotations": {"weft.dev/inventory": GPUS, **AGENT_BY_NAME},
        },
        "status": {"allocatable": {"cpu": 8}, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    nodes.take_node(Added(msgspec.convert(told, KubeNode)))
    assert [node.name for node in nodes.changed()[0]] == ["n"]
    found = PodView(
        ["weft"],
        nodes,
        VolumeView(),
        ledger or Ledger(()),
        DialectSettings(gpushare_unit="node"),
        on_bad=lambda _, why: heard.append(why) if heard is not None else None,
        clock=clock or VirtualClock(),
    )
    found.deciding = deciding
    return found


def test_a_pod_is_told_once_and_freed_only_at_its_end() -> None:
    pods = view()
    added = pods.update(pod())
    assert isinstance(added, PodAdded)
    assert added.pod.shape.extended == (("pods", 1),)
    assert pods.update(pod()) is None
    assert isinstance(pods.update(pod(nodeName="n")), PodSeenBound)
    assert pods.update(pod(nodeName="n", phase="Running")) is None
    assert pods.update(pod(nodeName="n", phase="Succeeded")) == PodGone("u", completed=True)


def test_a_pod_that_failed_or_was_deleted_has_not_completed() -> None:
    for end in ("Failed", ""):
        pods = view()
        pods.update(pod())
        pods.update(pod(nodeName="n"))
        gone = pods.update(pod(nodeName="n", phase=end)) if end else pods.forget(pod(nodeName="n"))
        assert gone == PodGone("u", completed=False)


def test_others_gated_and_followers_pods_are_not_told() -> None:
    assert view().update(pod(schedulerName="other")) is None
    assert view().update(pod(schedulingGates=[{"name": "g"}])) is None
    assert view(deciding=False).update(pod()) is None


def test_a_share_without_marks_is_charged_on_every_card() -> None:
    seen = view().update(pod(nodeName="n"))
    assert isinstance(seen, PodSeenBound)
    assert [(s.gpu, s.memory_mib) for s in seen.placement.shares] == [(0, 4000), (1, 4000)]


def test_whole_cards_without_marks_are_the_last_idle_ones() -> None:
    seen = view().update(pod({"nvidia.com/gpu": 1}, nodeName="n"))
    assert isinstance(seen, PodSeenBound)
    assert [s.gpu for s in seen.placement.shares] == [1]


def test_what_is_not_honoured_is_a_reason() -> None:
    added = view().update(pod(resourceClaims=[{"name": "gpu"}]))
    assert isinstance(added, PodAdded)
    assert "spec.resourceClaims" in added.pod.shape.constraints.unsupported


def test_a_pod_that_contradicts_itself_is_kept_apart() -> None:
    pods = view()
    assert pods.update(pod({"weft.dev/gpu-memory": 1, "aliyun.com/gpu-mem": 1})) is None
    assert "keep one system" in pods.bad["u"]


def test_marks_that_change_move_the_charge() -> None:
    pods = view()
    pods.update(pod(nodeName="n"))
    whole = pod(nodeName="n")
    value = '{"pod":"u","node":"n","shares":[[0,1,4000,0,""]]}'
    meta = msgspec.structs.replace(whole.metadata, annotations={"weft.dev/placement": value})
    seen = pods.update(msgspec.structs.replace(whole, metadata=meta))
    assert isinstance(seen, PodSeenBound)
    assert [share.gpu for share in seen.placement.shares] == [1]


def test_who_is_being_deleted_is_perhaps_stuck() -> None:
    pods = view()
    whole = pod(nodeName="n")
    pods.update(whole)
    assert pods.perhaps_stuck() == []
    meta = msgspec.structs.replace(whole.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    leaving = msgspec.structs.replace(whole, metadata=meta)
    seen = pods.update(leaving)
    assert isinstance(seen, PodSeenBound)
    assert seen.marks.terminating, "it counts for nobody's spread any more"
    assert pods.perhaps_stuck() == [leaving]
    pods.forget(leaving)
    assert pods.perhaps_stuck() == []


def test_what_is_kept_is_the_pod_as_it_is_now() -> None:
    pods = view()
    pods.update(pod(nodeName="n"))
    running = pod(nodeName="n", phase="Running")
    assert pods.update(running) is None
    assert pods.by_uid("u") is running
    assert pods.on_node("n") == [running]


def test_a_contradiction_is_heard_once_and_so_is_its_end() -> None:
    heard: list[str] = []
    pods = view(heard=heard)
    both = {"weft.dev/gpu-memory": 1, "aliyun.com/gpu-mem": 1}
    pods.update(pod(both))
    pods.update(pod(both, phase="Pending"))
    pods.update(pod())
    assert len(heard) == 2
    assert "keep one system" in heard[0]
    assert heard[1] == ""


def unforeseen(**spec: Any) -> Pod:
    """A pod that nothing would decode so: whoever reads it raises what nobody expects."""
    found = pod(**spec)
    return replace(found, spec=replace(found.spec, containers=7))  # type: ignore[arg-type]


def test_who_waits_and_cannot_be_read_by_a_mistake_of_ours_is_bad() -> None:
    heard: list[str] = []
    pods = view(heard=heard)
    assert pods.update(unforeseen()) is None
    assert pods.update(unforeseen(nodeName="")) is None
    assert "cannot be read: TypeError" in pods.bad["u"]
    assert heard == [pods.bad["u"]]
    assert pods.faults == 2
    assert isinstance(pods.update(pod()), PodAdded)
    assert pods.bad == {}


def test_who_was_told_and_then_cannot_be_read_waits_no_more() -> None:
    pods = view()
    assert isinstance(pods.update(pod()), PodAdded)
    assert pods.update(unforeseen()) == PodGone("u")


def test_who_runs_and_cannot_be_read_by_a_mistake_of_ours_holds_its_node() -> None:
    pods = view()
    seen = pods.update(unforeseen(nodeName="n"))
    assert isinstance(seen, PodSeenBound)
    assert seen.placement.node == "n"
    assert [share.gpu for share in seen.placement.shares] == [0, 1]
    assert "cannot be read (TypeError" in pods.assumed["u"]
    elsewhere = view().update(unforeseen(nodeName="nowhere"))
    assert isinstance(elsewhere, PodSeenBound)


def test_how_long_ago_a_pod_was_bound_is_by_the_time_of_day() -> None:
    """Never in the future, whatever the clocks say; 0 where nobody says when."""
    bound = pod(nodeName="n")
    clock = VirtualClock()
    clock.advance(700)  # since the year began
    whens = [("2026-01-01T00:00:00Z", 700), ("2026-01-01T00:20:00Z", 0), (None, 0)]
    for when, held_s in whens:
        pods = view(clock=clock)
        meta = replace(bound.metadata, creation_timestamp=when)
        seen = pods.update(replace(bound, metadata=meta))
        assert isinstance(seen, PodSeenBound)
        assert seen.held_ns == held_s * 10**9
