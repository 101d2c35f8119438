"""Pods that run out of GPU memory: learnt once from each end, and kept for the next process."""

import contextlib
import json
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from live_world import Json, bind, node, pod, run, until

from weft.engine import Lesson
from weft.engine.lessons import MOST
from weft.framework import Profile
from weft.kube.client import ApiClient
from weft.kube.config import Endpoint
from weft.kube.credentials import Fixed
from weft.kube.kept import Kept
from weft.live.cluster import Cluster
from weft.live.lessons import Entry, entry_of, key_of
from weft.policies.fgd import Fgd
from weft.testing.api_clock import VirtualClock
from weft.testing.api_server import FakeApiServer
from weft.testing.api_store import Refusal

JOB, KEY = "d/Job/train", "d.Job.train"
NAMED = {"name": "weft-lessons", "namespace": "kube-system"}
CUDA = "torch.OutOfMemoryError: CUDA out of memory."


def made_by(raw: Json, kind: str = "Job", name: str = "train") -> Json:
    """The pod, as that owner makes it."""
    raw["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
    return raw


def terminated(code: int = 1, reason: str = "Error") -> Json:
    return {"terminated": {"exitCode": code, "reason": reason, "message": CUDA}}


def stored(server: FakeApiServer) -> dict[str, str]:
    """What the ConfigMap says, as it is."""
    with contextlib.suppress(Refusal):
        found: dict[str, str] = server.get("configmaps", NAMED["name"], NAMED["namespace"])["data"]
        return found
    return {}


def entry(server: FakeApiServer, workload: str = JOB) -> Entry | None:
    text = stored(server).get(key_of(workload))
    return entry_of(key_of(workload), text) if text is not None else None


class Scene:
    """A cluster on a fake API server, whose lessons are kept there."""

    def __init__(self, server: FakeApiServer, client: ApiClient, **how: Any) -> None:
        self.server = server
        kept = Kept(client, NAMED["namespace"], NAMED["name"])
        self.live = Cluster(client, [Profile("weft", [Fgd()])], kept=kept, **how)

    @property
    def known(self) -> dict[str, Lesson]:
        return self.live.engine.lessons.known

    async def bound(self, name: str, memory_mib: int = 2_000) -> None:
        """Add a pod of the job and wait until the watch shows it bound."""
        self.server.add("pods", made_by(pod(name, memory_mib)))
        await until(lambda: (p := self.live.pod("d", name)) and p.spec.node_name)

    def charged(self, name: str) -> tuple[int, int]:
        """MiB and thousandths of a GPU that its binding says."""
        marks = self.server.get("pods", name, "d")["metadata"]["annotations"]
        (share,) = json.loads(marks["weft.dev/placement"])["shares"]
        return share[2], share[3]

    def fails(self, name: str, restarts: int | None = None, **how: Any) -> None:
        """It runs out of memory: for good, or to run again for the so-many-th time."""
        last = terminated(**how)
        one: Json = {"name": "c", "restartCount": restarts or 0}
        one |= {"state": last} if restarts is None else {"lastState": last, "state": {}}
        status: Json = {"containerStatuses": [one]}
        status["phase"] = "Failed" if restarts is None else "Running"
        self.server.update("pods", name, {"status": status}, "d")


@asynccontextmanager
async def scene(
    server: FakeApiServer, *, lead: bool = True, quietly: bool = True, **how: Any
) -> AsyncIterator[Scene]:
    """A process's life. Unless `quietly`, it dies at the end without a last word."""
    clock = VirtualClock(auto=True)
    endpoint = Endpoint(server.url, Fixed())
    async with ApiClient(endpoint, rng=random.Random(1), clock=clock) as client:
        made = Scene(server, client, **how)
        await made.live.start()
        if lead:
            await made.live.lead(afresh=False, term=3)
        try:
            yield made
        finally:
            if not quietly:
                server.fault("lose-request", path="configmaps", times=1_000_000)
            await made.live.stop()
            server.faults.forget()


@asynccontextmanager
async def api(*nodes: Json) -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        for one in nodes or (node(),):
            server.add("nodes", one)
        yield server


def test_the_next_pod_is_charged_more_and_so_it_is_after_a_restart() -> None:
    async def life() -> None:
        async with api() as server:
            async with scene(server) as first:
                await first.bound("a")
                assert first.charged("a") == (2_000, 0)
                first.fails("a")
                await until(lambda: entry(server))
                found = entry(server)
                assert found is not None
                assert (found.times, found.least_mib) == (1, 2_500)
                await first.bound("b")
                assert first.charged("b") == (2_500, 0)
            for name in ("a", "b"):
                server.remove("pods", name, "d")
            async with scene(server) as second:
                await second.bound("c")
                assert second.charged("c") == (2_500, 0)

    run(life())


def test_the_second_time_it_gets_a_card_of_its_own() -> None:
    async def life() -> None:
        async with api() as server, scene(server) as made:
            await made.bound("a")
            made.fails("a")
            await made.bound("b")
            made.fails("b")
            await until(lambda: (e := entry(server)) and e.times == 2)
            await made.bound("c")
            assert made.charged("c") == (16_000, 1_000)

    run(life())


def test_restarts_in_one_pod_count_each_end_once() -> None:
    async def life() -> None:
        async with api() as server, scene(server) as made:
            await made.bound("a")
            made.fails("a", restarts=1)
            await until(lambda: made.known.get(JOB))
            server.update("pods", "a", {"metadata": {"labels": {"touched": "yes"}}}, "d")
            await until(lambda: (p := made.live.pod("d", "a")) and p.metadata.labels)
            assert made.known[JOB].times == 1
            assert "a" in [made.live.pod_by_uid(u).metadata.name for u in holders(made)]  # type: ignore[union-attr]
            made.fails("a", restarts=2)
            await until(lambda: made.known[JOB].times == 2)
            assert made.live.ends.count == 2

    run(life())


def holders(made: Scene) -> list[str]:
    return list(made.live.engine.ledger.holdings)


@pytest.mark.parametrize("point", ["before it was written", "before the answer came", "after"])
def test_a_process_that_dies_meanwhile_has_learnt_once(point: str) -> None:
    """`die` at each point between learning and knowing that it is kept; the pod is still there."""

    async def life() -> None:
        async with api() as server:
            async with scene(server, quietly=False) as first:
                await first.bound("a")
                if point == "before it was written":
                    server.fault("lose-request", path="configmaps", times=1_000_000)
                elif point == "before the answer came":
                    server.fault("lose-answer", path="configmaps", times=1_000_000)
                first.fails("a")
                if point == "before it was written":
                    await until(lambda: first.live.lessons.counts["failed"])
                else:
                    await until(lambda: entry(server))
            known = entry(server)
            assert (known is None) is (point == "before it was written")
            async with scene(server) as second:
                await until(lambda: entry(server))
                assert second.known[JOB].times == 1
                found = entry(server)
                assert found is not None
                assert (found.times, found.least_mib) == (1, 2_500)
                await second.bound("b")
                assert second.charged("b") == (2_500, 0)

    run(life())


def test_the_nodes_own_memory_teaches_nothing() -> None:
    async def life() -> None:
        async with api() as server, scene(server) as made:
            await made.bound("a")
            made.fails("a", reason="OOMKilled", code=137)
            await until(lambda: not holders(made))
            await made.bound("b")
            assert made.charged("b") == (2_000, 0)
            assert made.live.ends.count == 0
            assert stored(server) == {}

    run(life())


def test_a_pod_that_nobody_makes_again_teaches_nothing() -> None:
    async def life() -> None:
        async with api() as server, scene(server) as made:
            server.add("pods", pod("a", 2_000))
            await until(lambda: (p := made.live.pod("d", "a")) and p.spec.node_name)
            made.fails("a")
            await until(lambda: not holders(made))
            assert made.live.ends.count == 1
            assert made.known == {}

    run(life())


def test_a_pod_that_another_scheduler_placed_teaches_by_its_marks() -> None:
    async def life() -> None:
        async with api() as server, scene(server) as made:
            for name in ("marked", "unmarked"):
                server.add("pods", made_by(pod(name, 3_000, scheduler="other"), name=name))
            bind(server, "marked", 1, "2026-01-01T00:00:01Z", memory_mib=3_000)
            bind(server, "unmarked", None, "2026-01-01T00:00:01Z")
            await until(lambda: len(holders(made)) == 2)
            made.fails("unmarked")
            made.fails("marked")
            await until(lambda: made.live.ends.count == 2)
            assert made.known.keys() == {"d/Job/marked"}
            assert made.known["d/Job/marked"].least_mib == 3_750

    run(life())


def test_what_the_pod_was_seen_to_use_counts() -> None:
    async def life() -> None:
        async with api() as server, scene(server) as made:
            await made.bound("a")
            (uid,) = holders(made)
            made.live.ends.peak_mib = {uid: 4_000}.__getitem__
            made.fails("a")
            await until(lambda: made.known.get(JOB))
            assert made.known[JOB].least_mib == 5_000

    run(life())


def test_a_follower_learns_and_writes_only_once_it_leads() -> None:
    async def life() -> None:
        async with api() as server, scene(server) as leader:
            await leader.bound("a")
            server.fault("status", path="configmaps", method="POST", code=500, times=1_000_000)
            async with scene(server, lead=False) as follower:
                leader.fails("a")
                await until(lambda: follower.known.get(JOB))
                await until(lambda: leader.live.lessons.counts["failed"])
                assert follower.live.lessons.counts == {"written": 0, "conflict": 0, "failed": 0}
                server.faults.forget()
                await leader.live.stop()  # it writes what is left
                first = await until(lambda: entry(server))
                server.remove("configmaps", NAMED["name"], NAMED["namespace"])
                await follower.live.lead(afresh=False)
                assert first == await until(lambda: entry(server))
                assert follower.known[JOB].times == 1

    run(life())


def test_without_an_api_that_answers_memory_has_to_do(caplog: pytest.LogCaptureFixture) -> None:
    async def life() -> None:
        async with api() as server:
            server.fault("status", path="configmaps/", code=403, times=1_000_000)
            server.fault("status", path="configmaps", method="POST", code=403, times=1_000_000)
            async with scene(server) as made:
                await made.bound("a")
                made.fails("a")
                await until(lambda: made.known.get(JOB))
                await made.bound("b")
                assert made.charged("b") == (2_500, 0)
                await until(lambda: made.live.lessons.counts["failed"] > 3)
                said = [r for r in caplog.records if "lessons are not kept" in r.getMessage()]
                assert len(said) == 1
                server.faults.forget()
                await until(lambda: entry(server))
                assert made.live.lessons.counts["written"] == 1

    with caplog.at_level(logging.INFO, "weft.live"):
        run(life())


def put(server: FakeApiServer, **data: str) -> None:
    """Somebody else writes into the ConfigMap, or makes it."""
    data = {key.replace("__", "."): text for key, text in data.items()}
    if stored(server):
        server.update("configmaps", NAMED["name"], {"data": data}, NAMED["namespace"])
    else:
        server.add("configmaps", {"metadata": NAMED, "data": data})


def lesson(workload: str = JOB, times: int = 1, least_mib: int = 1_000, **more: Any) -> str:
    return json.dumps({"workload": workload, "times": times, "least_mib": least_mib, **more})


def test_two_that_write_at_once_join_what_they_know() -> None:
    async def life() -> None:
        async with api() as server:
            put(server, d__Job__other=lesson("d/Job/other"))
            async with scene(server) as made:
                await made.bound("a")
                put(server, d__Job__train=lesson(least_mib=7_000, ends=["x"], note="mine"), new="?")
                made.fails("a")
                await until(lambda: (e := entry(server)) and e.times == 2)
                found = json.loads(stored(server)[KEY])
                assert (found["least_mib"], found["note"]) == (7_000, "mine")
                assert found["ends"][0] == "x"
                assert made.known[JOB].times == 2
                assert made.known["d/Job/other"] == Lesson(1, 1_000)
                assert stored(server)["new"] == "?"
                assert made.live.lessons.counts["conflict"] == 1

    run(life())


BROKEN = {
    "d.Job.train": "{",
    "d.Job.a": "[]",
    "d.Job.b": lesson("d/Job/c"),
    "d.Job.d": lesson("d/Job/d", times=-1),
    "d.Job.e": lesson("d/Job/e", least_mib=2**40),
    "README": "lessons of Weft",
}


def test_what_cannot_be_read_is_told_once_and_stays(caplog: pytest.LogCaptureFixture) -> None:
    async def life() -> None:
        async with api() as server:
            good = {"d.Job.good": lesson("d/Job/good")}
            server.add("configmaps", {"metadata": NAMED, "data": {**BROKEN, **good}})
            async with scene(server) as made:
                assert made.known == {"d/Job/good": Lesson(1, 1_000)}
                await made.bound("a")
                made.fails("a")
                server.add("pods", made_by(pod("b", 2_000), name="next"))
                await until(lambda: (p := made.live.pod("d", "b")) and p.spec.node_name)
                made.fails("b")
                await until(lambda: entry(server, "d/Job/next"))
                assert {key: stored(server)[key] for key in BROKEN} == BROKEN
                assert made.live.lessons.unreadable == BROKEN.keys()
                assert made.known[JOB].times == 1
                put(server, d__Job__train=lesson(least_mib=9_000))  # somebody mended it
                server.add("pods", made_by(pod("c", 2_000), name="next"))
                await until(lambda: (p := made.live.pod("d", "c")) and p.spec.node_name)
                made.fails("c")
                await until(lambda: made.live.lessons.unreadable == BROKEN.keys() - {KEY})
                assert made.known[JOB].least_mib == 9_000

    with caplog.at_level(logging.WARNING, "weft.live"):
        run(life())
    said = [r.getMessage() for r in caplog.records if "is no lesson" in r.getMessage()]
    assert len(said) == len(BROKEN)


def test_of_too_many_workloads_the_one_that_failed_least_recently_goes() -> None:
    async def life() -> None:
        async with api() as server:
            data = {
                key_of(f"d/Job/j{n}"): lesson(f"d/Job/j{n}", at=f"2025-01-01T00:{n:04}:00Z")
                for n in range(MOST)
            }
            server.add("configmaps", {"metadata": NAMED, "data": {**data, "README": "?"}})
            async with scene(server) as made:
                await made.bound("a")
                made.fails("a")
                await until(lambda: entry(server))
                gone = data.keys() - stored(server).keys()
                assert gone == {key_of("d/Job/j0")}
                assert "d/Job/j0" not in made.known
                assert "README" in stored(server)

    run(life())


def test_ends_that_come_together_are_one_write() -> None:
    async def life() -> None:
        async with api(node(count=8)) as server, scene(server) as made:
            for number in range(8):
                await made.bound(f"p{number}")
            for number in range(8):
                made.fails(f"p{number}")
            await until(lambda: made.live.ends.count == 8)
            await until(lambda: (e := entry(server)) and e.times == 2)
            assert made.live.lessons.counts["written"] <= 2

    run(life())


def test_nothing_is_written_without_the_lease() -> None:
    async def life() -> None:
        allowed: list[bool] = []
        may: Callable[[float], bool] = lambda _: bool(allowed)  # noqa: E731
        async with api() as server, scene(server, may_bind=may) as made:
            server.add("pods", made_by(pod("a", 2_000)))
            bind(server, "a", 0, "2026-01-01T00:00:01Z", memory_mib=2_000)
            await until(lambda: holders(made))
            made.fails("a")
            await until(lambda: made.known.get(JOB))
            slept = len(made.live.client.clock.slept)  # type: ignore[attr-defined]
            await until(lambda: len(made.live.client.clock.slept) > slept + 3)  # type: ignore[attr-defined]
            assert stored(server) == {}
            allowed.append(True)
            await until(lambda: entry(server))

    run(life())


def test_keys_are_valid_short_and_each_workloads_own() -> None:
    names = [
        "ml/Deployment/web", "ml/Deployment/web.v2", "ml.v2/Deployment/web", "ml/Job/" + "a" * 250,
        "ml/Job/" + "a" * 251, "ml/application/my app", "ml/application/my-app",
        "ml/application/my_app", "ml/application/a/b", "ml/application/日本", "ml/application/..",
        "/x/y", "u-1",
    ]  # fmt: skip
    keys = [key_of(name) for name in names]
    assert keys[0] == "ml.Deployment.web"
    assert len(set(keys)) == len(names)
    for key in keys:
        assert len(key) <= 253
        assert key.replace("-", "").replace("_", "").replace(".", "").isascii()
        assert key.replace("-", "").replace("_", "").replace(".", "").isalnum()
        assert not key.startswith(".")


def test_only_who_decides_lets_the_successor_go_first() -> None:
    """A follower's lessons hold, but the queue's head is for pods that it saw end while it led."""

    async def life() -> None:
        async with (
            api() as server, scene(server) as leader, scene(server, lead=False) as follower,
        ):  # fmt: skip
            await leader.bound("a")
            leader.fails("a")
            for one in (leader, follower):
                await until(lambda one=one: one.known.get(JOB))  # type: ignore[misc]
            successor = leader.live.parse(leader.live.pod("d", "a"))  # type: ignore[arg-type]
            assert successor.workload == JOB
            assert leader.live.engine.lessons.goes_first(successor)
            assert not follower.live.engine.lessons.goes_first(successor)

    run(life())


def test_a_lesson_nested_too_deeply_is_none_of_ours() -> None:
    deep = "[" * 5000 + "]" * 5000
    with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
        entry_of("a", '{"workload": "a", "times": 1, "least_mib": 1, "more": ' + deep + "}")
