"""Groups of pods: their PodGroups come, change and go, and their pods are told anew."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from live_world import World, bind, client_of, living, node, pod, until
from msgspec import UNSET, UnsetType

from fakes.api_server import FakeApiServer
from weft.cli.snapshot_files import open_snapshot
from weft.cluster.config.form import Configuration
from weft.cluster.control.live_cluster import asks_the_same
from weft.cluster.snapshot.anonymous import anonymous
from weft.cluster.snapshot.capture import captured, snapshot_of
from weft.cluster.snapshot.file import read as read_snapshot
from weft.cluster.snapshot.file import write
from weft.cluster.snapshot.form import ClusterSnapshot
from weft.cluster.state import pod_reader
from weft.cluster.state.groups import PLUGIN_GROUPS, GroupView
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import Event, PodAdded, PodSeenBound
from weft.core.framework.policy import queue_order
from weft.core.policies.fgd import Fgd
from weft.dialects.dialect import DialectSettings
from weft.dialects.group_objects import KubePodGroup
from weft.kube.clock import SystemClock
from weft.kube.codec import MetaOnly
from weft.kube.pods import Pod
from weft.kube.watch import Added, Deleted, Modified
from weft.model import Gang
from weft.model.manifest import ObjectMeta

Json = dict[str, Any]
CORE, OLD_CORE = "scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha2"
PLUGINS, VOLCANO = "scheduling.x-k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1"
LABEL = "scheduling.x-k8s.io/pod-group"
KOORDINATOR = "gang.scheduling.koordinator.sh/"
JOB_SET = {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/global-replicas": "2"}
NOWHERE: Json = {"nodeSelector": {"no": "where"}}
GANG_OF_2: Json = {"schedulingPolicy": {"gang": {"minCount": 2}}}
WORDS: dict[str, tuple[str, Json, Json]] = {
    CORE: ("kubernetes", {}, GANG_OF_2),
    OLD_CORE: ("kubernetes", {}, GANG_OF_2),
    PLUGINS: ("scheduler-plugins", {"labels": {LABEL: "train"}}, {"minMember": 2}),
    VOLCANO: (
        "volcano",
        {"annotations": {"scheduling.k8s.io/group-name": "train"}},
        {"minMember": 2, "minTaskMember": {"worker": 2}},
    ),
}
"""By API version: the system, what its pods' metadata says, and the spec of its PodGroup."""


def member(name: str, version: str = PLUGINS, **spec: Any) -> Json:
    """A pod of group `train`, in the words of this API's system; it fits nowhere."""
    if version in (CORE, OLD_CORE):
        spec["schedulingGroup"] = {"podGroupName": "train"}
    made = pod(name, 1_000, **{**NOWHERE, **spec})
    made["metadata"] |= WORDS[version][1]
    return made


def group(spec: Json) -> Json:
    return {"metadata": {"name": "train", "namespace": "d"}, "spec": spec}


class Told(World):
    """A world that keeps what its engine was told of pods."""

    events: list[Event]

    def gangs(self, name: str) -> list[Gang | UnsetType]:
        """The groups that the pod was told with, one after the other."""
        uid = self.uid(name)
        asked = [e.pod.gang for e in self.events if isinstance(e, PodAdded) and e.pod.uid == uid]
        seen = [e for e in self.events if isinstance(e, PodSeenBound)]
        return asked + [each.gang for each in seen if each.placement.uid == uid]

    def least(self, name: str) -> list[int]:
        """The sizes of these."""
        return [0 if gang is UNSET else gang.least for gang in self.gangs(name)]


@asynccontextmanager
async def world(
    *served: str, denied: tuple[str, str] | None = None, **how: Any
) -> AsyncIterator[Told]:
    async with FakeApiServer(has_groups=served) as server, client_of(server) as client:
        if denied is not None:
            server.access.denied.add(denied)
        server.add("nodes", node("n"))
        server.add("namespaces", {"metadata": {"name": "d"}})
        made = Told(server, client, Fgd(), **how)
        made.events = []
        decide = made.live.decide

        def hear(event: Event, now: int) -> Any:
            made.events.append(event)
            return decide(event, now)

        made.live.decide = hear
        async with living(made):
            yield made


@pytest.mark.parametrize("version", WORDS)
async def test_a_group_object_that_comes_later_says_the_size(version: str) -> None:
    system, _, spec = WORDS[version]
    async with world(version) as made:
        made.server.add("pods", member("a", version))
        await until(lambda: made.gangs("a"))
        assert made.gangs("a") == [Gang(system, "d", "train")], "it waits for its PodGroup"

        made.server.add(f"podgroups.{version}", group(spec))

        await until(lambda: made.least("a")[-1] == 2)
        gang = made.gangs("a")[-1]
        assert gang
        assert gang.key == f"{system}:d/train"
        assert gang.created_ns > 0
        assert gang.least_by_task == ((("worker", 2),) if system == "volcano" else ())


async def test_a_group_object_that_changes_or_goes_is_told_to_each_of_its_pods() -> None:
    async with world(PLUGINS) as made:
        made.server.add(f"podgroups.{PLUGINS}", group({"minMember": 5}))
        for name in ("a", "b"):
            made.server.add("pods", member(name))
        made.server.add("pods", pod("plain", 1_000))
        await until(lambda: made.least("a") == made.least("b") == [5])
        made.server.update(f"podgroups.{PLUGINS}", "train", {"spec": {"minMember": 4}}, "d")
        await until(lambda: made.least("a") == made.least("b") == [5, 4])
        made.server.update(f"podgroups.{PLUGINS}", "train", {"status": {"phase": "Pending"}}, "d")
        made.server.remove(f"podgroups.{PLUGINS}", "train", "d")
        await until(lambda: made.least("a") == made.least("b") == [5, 4, 0])
        assert made.least("plain")[0] == 0
        assert set(made.gangs("plain")) == {UNSET}


async def test_a_basic_group_is_no_gang() -> None:
    async with world(CORE) as made:
        made.server.add(f"podgroups.{CORE}", group({"schedulingPolicy": {"basic": {}}}))
        made.server.add("pods", member("a", CORE, nodeSelector={}))
        await until(lambda: made.server.get("pods", "a", "d")["spec"].get("nodeName"))
        assert set(made.gangs("a")) == {UNSET}


async def test_a_group_that_weft_cannot_honour_waits_with_that_reason() -> None:
    async with world(VOLCANO) as made:
        spec = {"minMember": 1, "networkTopology": {"mode": "hard"}}
        made.server.add(f"podgroups.{VOLCANO}", group(spec))
        made.server.add("pods", member("a", VOLCANO, nodeSelector={}))
        await until(lambda: made.gangs("a"))
        asked = made.live.parse(made.live.pods.pods["d", "a"]).shape.constraints
        assert "spec.networkTopology with mode hard is not honoured" in asked.unsupported
        change = {"spec": {"networkTopology": {"mode": "soft"}}}
        made.server.update(f"podgroups.{VOLCANO}", "train", change, "d")
        await until(lambda: made.server.get("pods", "a", "d")["spec"].get("nodeName"))


async def test_pods_of_a_composite_group_wait_with_that_reason() -> None:
    async with world(CORE) as made:
        spec = {"schedulingPolicy": {"basic": {}}, "parentCompositePodGroupName": "all"}
        made.server.add(f"podgroups.{CORE}", group(spec))
        made.server.add("pods", member("a", CORE, nodeSelector={}))
        await until(lambda: made.gangs("a"))
        asked = made.live.parse(made.live.pods.pods["d", "a"]).shape.constraints
        assert "it is part of CompositePodGroup all" in asked.unsupported
        assert not made.server.get("pods", "a", "d")["spec"].get("nodeName")


async def test_pods_of_a_group_above_the_configured_size_say_so() -> None:
    async with world(PLUGINS, gang_pods=1) as made:
        made.server.add(f"podgroups.{PLUGINS}", group({"minMember": 2}))
        for name in "ab":
            made.server.add("pods", member(name, nodeSelector={}))
        await until(lambda: 2 in made.least("b"))
        asked = made.live.parse(made.live.pods.pods["d", "b"]).shape.constraints
        assert "needs 2 pods together, and queue.gangPods allows 1" in asked.unsupported
        assert not made.server.get("pods", "b", "d")["spec"].get("nodeName")


async def test_a_bound_pods_group_is_told_with_it() -> None:
    async with world(PLUGINS) as made:
        made.server.add("pods", member("a", scheduler="other"))
        uid = bind(made.server, "a", 0, "2020-01-01T00:00:00Z", memory_mib=1_000)
        await until(lambda: made.least("a") == [0])
        made.server.add(f"podgroups.{PLUGINS}", group({"minMember": 2}))
        await until(lambda: made.least("a") == [0, 2])
        assert made.uid("a") == uid


async def test_more_pods_than_one_turn_tells_of_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.cluster.control.live_cluster._MOVED_PODS", 2)
    async with world(PLUGINS) as made:
        names = [f"p{number}" for number in range(7)]
        for name in names:
            made.server.add("pods", member(name))
        await until(lambda: all(made.gangs(name) for name in names))
        made.server.add(f"podgroups.{PLUGINS}", group({"minMember": 90}))
        await until(lambda: all(made.least(name)[-1] == 90 for name in names))


async def test_of_two_stated_sizes_the_larger_counts_and_each_pod_hears_why() -> None:
    def of(name: str, least: str) -> Json:
        made = pod(name, 1_000, **NOWHERE)
        said = {f"{KOORDINATOR}name": "train", f"{KOORDINATOR}min-available": least}
        made["metadata"]["annotations"] = said
        return made

    async with world() as made:
        made.server.add("pods", of("a", "90"))
        await until(lambda: made.least("a") == [90])
        made.server.add("pods", of("b", "91"))
        await until(lambda: made.least("a") == [90, 91] and made.least("b")[-1] == 91)
        told = [e.pod for e in made.events if isinstance(e, PodAdded)]
        assert "state sizes 90 and 91: 91 counts" in told[-1].warnings[-1]
        made.server.remove("pods", "b", "d")
        await until(lambda: made.least("a") == [90, 91, 90])


async def test_a_namespace_makes_groups_of_owners() -> None:
    async with world() as made:
        owned = pod("a", 1_000, **NOWHERE)
        owned["metadata"] |= {"labels": JOB_SET, "annotations": {"weft.dev/gang-size": "90"}}
        made.server.add("pods", owned)
        await until(lambda: made.gangs("a"))
        says = {"metadata": {"annotations": {"weft.dev/gang": "owner"}}}
        made.server.update("namespaces", "d", says)
        await until(lambda: made.least("a") == [0, 90])
        made.server.remove("namespaces", "d")
        await until(lambda: made.gangs("a")[-1] is UNSET)


async def test_without_the_api_nothing_more_is_watched_and_its_pods_wait() -> None:
    async with world() as made:
        assert not [feed for feed in made.live.feeds if feed.resource.name == "podgroups"]
        made.server.add("pods", member("a"))
        await until(lambda: made.gangs("a"))
        (added,) = [e.pod for e in made.events if isinstance(e, PodAdded)]
        assert "no podgroups.scheduling.x-k8s.io in the API server" in added.warnings[-1]


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_who_may_not_read_groups_is_told_once(
    verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with world(PLUGINS, denied=(verb, "podgroups")) as made:
            made.server.add(f"podgroups.{PLUGINS}", group({"minMember": 1}))
            made.server.add("pods", member("a"))
            await until(lambda: made.gangs("a"))
            assert made.least("a") == [0]
    told = [line for line in caplog.messages if "of groups that PodGroups define" in line]
    assert len(told) == 1
    assert f"no permission to {verb} podgroups" in told[0]


async def test_a_group_that_changed_since_its_pod_was_decided_does_not_stop_its_binding() -> None:
    async with world(PLUGINS) as made:
        made.server.add(f"podgroups.{PLUGINS}", group({"minMember": 9}))
        made.server.add("pods", member("a"))
        await until(lambda: made.least("a") == [9])
        decided = made.live.parse(made.live.pods.pods["d", "a"])
        made.server.remove(f"podgroups.{PLUGINS}", "train", "d")
        await until(lambda: made.least("a")[-1] == 0)
        unchanged = asks_the_same(decided, made.live.parse)
        shown = made.live.pods.pods["d", "a"]
        assert unchanged(shown)
        elsewhere = msgspec.structs.replace(shown.metadata, labels={LABEL: "other"})
        assert not unchanged(msgspec.structs.replace(shown, metadata=elsewhere))


# --- snapshots ---


async def taken(version: str) -> ClusterSnapshot:
    async with FakeApiServer(has_groups=[version]) as server, client_of(server) as client:
        server.add("nodes", node("n"))
        server.add(f"podgroups.{version}", group(WORDS[version][2]))
        server.add("pods", member("a", version))
        said = {f"{KOORDINATOR}name": "own", f"{KOORDINATOR}min-available": "3"}
        other = pod("b", 1_000)
        other["metadata"]["annotations"] = said
        server.add("pods", other)
        found = await captured(client, Configuration())
        return snapshot_of(found, Configuration(), SystemClock().wall())


def groups_in(snapshot: ClusterSnapshot, folder: Path) -> dict[str, Gang | UnsetType]:
    write(snapshot, folder / "s.json")
    requests, bad = open_snapshot(folder / "s.json").pending()
    assert not bad
    assert read_snapshot(folder / "s.json") == snapshot
    return {str(request.gang and request.gang.system): request.gang for request in requests}


@pytest.mark.parametrize("rename", [lambda s: s, anonymous], ids=["named", "anonymous"])
@pytest.mark.parametrize("version", WORDS)
async def test_a_snapshot_keeps_groups(version: str, rename: Any, tmp_path: Path) -> None:
    made = rename(await taken(version))
    gangs = await asyncio.to_thread(groups_in, made, tmp_path)
    first, own = gangs[WORDS[version][0]], gangs["koordinator"]
    assert first
    assert own
    assert (first.least, own.least) == (2, 3)
    assert (str(own) == "d/own") == (rename is not anonymous)


# --- the view ---


def shown(uid: str, **said: Any) -> Pod:
    meta = {"name": uid, "uid": uid, "namespace": "d", **said}
    return msgspec.convert({"metadata": meta, "spec": {"containers": []}}, Pod)


def objects(name: str, least: int) -> KubePodGroup:
    meta = {"name": name, "namespace": "d"}
    return msgspec.convert({"metadata": meta, "spec": {"minMember": least}}, KubePodGroup)


def test_only_pods_of_a_group_that_says_something_else_moved() -> None:
    view, one = GroupView(), shown("x", labels={LABEL: "one"})
    view.follow("scheduler-plugins", PLUGIN_GROUPS)
    for each in (one, shown("y", labels={LABEL: "two"}), shown("z")):
        view.use(each)
    view.take("scheduler-plugins", Added(objects("one", 2)))
    assert view.take_moved(9) == ["x"]
    view.take("scheduler-plugins", Modified(objects("one", 2), objects("one", 2)))
    view.take("volcano", Added(objects("one", 3)))
    assert not view.moved
    view.take("scheduler-plugins", Deleted(objects("one", 2)))
    assert view.take_moved(9) == ["x"]
    assert "there is no PodGroup d/one" in view.read(one).warnings[0]
    view.take("scheduler-plugins", Added(objects("one", 2)))
    view.release(one)
    assert not view.moved, "nobody is left to tell"


def test_a_group_that_needs_more_pods_than_are_placed_together_waits_and_says_so() -> None:
    view, one = GroupView(most=3), shown("x", labels={LABEL: "one"})
    view.follow("scheduler-plugins", PLUGIN_GROUPS)
    view.use(one)
    view.take("scheduler-plugins", Added(objects("one", 3)))
    assert not view.read(one).unhonoured
    view.take("scheduler-plugins", Modified(objects("one", 10_000), objects("one", 3)))
    why = view.read(one).unhonoured
    assert why == "group d/one needs 10,000 pods together, and queue.gangPods allows 3"


def test_pods_that_state_one_size_tell_nobody() -> None:
    said = {f"{KOORDINATOR}name": "train", f"{KOORDINATOR}min-available": "3"}
    view = GroupView()
    for number in range(4):
        view.use(shown(str(number), annotations=said))
    assert not view.moved
    view.release(shown("0", annotations=said))
    assert not view.moved


def test_a_pod_that_leaves_its_group_is_in_none() -> None:
    view = GroupView()
    view.use(shown("x", labels={LABEL: "one"}))
    view.use(shown("x"))
    view.take("scheduler-plugins", Added(objects("one", 2)))
    assert not view.moved
    assert view.read(shown("x")).gang is UNSET


def test_a_namespace_says_it_of_its_own_pods_alone() -> None:
    view = GroupView()
    inside, outside = shown("x", labels=JOB_SET), shown("y", labels=JOB_SET, namespace="e")
    view.use(inside)
    view.use(outside)
    meta = ObjectMeta(name="d", annotations={"weft.dev/gang": "owner"})
    view.take_namespace(Added(MetaOnly(meta)))
    assert view.take_moved(9) == ["x"]
    assert view.read(inside).gang
    assert view.read(outside).gang is UNSET
    view.take_namespace(Deleted(MetaOnly(meta)))
    assert view.take_moved(9) == ["x"]
    assert view.read(inside).gang is UNSET


def test_members_of_other_schedulers_and_priorities_are_named() -> None:
    view = GroupView(ours={"weft", "weft-b"})
    for name, scheduler, priority in (
        ("a", "weft", 1),
        ("b", "weft-b", 1),
        ("c", "other", 1),
        ("e", "weft", 5),
    ):
        view.use(part(name, scheduler, priority))
    assert set(view.take_moved(9)) == {"a", "b", "c", "e"}
    assert view.read(part("a", "weft", 1)).warnings[-2:] == (
        "pod d/c of group d/train has schedulerName other, which is not Weft's: it does not count "
        "for the group until it is bound; write one schedulerName on all",
        "pods of group d/train have priorities 1 and 5: the highest counts for all; set one "
        "priority on all",
    )
    view.use(part("c", "other", 1, node="n"))
    view.release(part("e", "weft", 5))
    assert set(view.take_moved(9)) == {"a", "b", "c"}
    assert "write one" not in " ".join(view.read(part("a", "weft", 1)).warnings)


def test_thousands_of_members_elsewhere_are_told_of_only_while_it_says_something_new() -> None:
    view = GroupView(ours={"weft"})
    told = 0
    for number in range(2_000):
        view.use(part(f"p{number}", "other" if number % 2 else "weft", number))
        told += len(view.take_moved(10_000))
    assert told < 30
    (elsewhere, priorities) = view.read(part("p0", "weft", 0)).warnings[-2:]
    assert elsewhere.startswith("pods d/p1, d/p3, … of group d/train have schedulerName other")
    assert priorities.startswith("pods of group d/train have priorities 0, 1, …")


def part(name: str, scheduler: str, priority: int, node: str = "") -> Pod:
    """A pod of group `train`, which has two pods."""
    said = {f"{KOORDINATOR}name": "train", f"{KOORDINATOR}min-available": "2"}
    meta = {"name": name, "uid": name, "namespace": "d", "annotations": said}
    spec = {"schedulerName": scheduler, "priority": priority, "nodeName": node, "containers": []}
    return msgspec.convert({"metadata": meta, "spec": spec}, Pod)


@pytest.mark.parametrize(
    "said",
    [
        {"annotations": {"weft.dev/gang": "owner"}, "labels": JOB_SET},
        {"annotations": {f"{KOORDINATOR}name": "train", f"{KOORDINATOR}min-available": "2"}},
    ],
    ids=["owner", "koordinator"],
)
def test_groups_without_an_object_are_ordered_by_their_pods_ages(said: Json) -> None:
    """As the live cluster reads them: no PodGroup says when such a group was created."""
    view, volumes, minute = GroupView(), VolumeView(), "2026-01-01T00:00"

    def key(second: int, **more: Any) -> tuple[int, ...]:
        made = pod(f"at-{second}", 1_000)
        made["metadata"] |= {
            "uid": f"u-{second}",
            "creationTimestamp": f"{minute}:{second}Z",
            **more,
        }
        known = msgspec.convert(made, Pod)
        view.use(known)
        read = pod_reader.read(known, DialectSettings(), volumes, groups=view)
        assert bool(read.gang) == bool(more)
        return queue_order(Fgd(), read).key

    assert key(11) < key(12, **said) < key(13) < key(14, **said)
