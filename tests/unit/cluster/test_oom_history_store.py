"""The ConfigMap keeps what was learnt of pods that ran out of memory."""

import json
import logging
from collections.abc import Callable

import msgspec
import pytest
from live_world import api, bind, node, pod, until
from oom_history_world import (
    JOB,
    KEY,
    NAMED,
    entry,
    holders,
    made_by,
    oom_record,
    put,
    scene,
    stored,
)

from fakes.lease import LeaseStub
from weft.cluster.stores.oom_history_store import entry_of, key_of
from weft.core.engine import OomRecord
from weft.core.engine.oom_history import MOST


async def test_two_that_write_at_once_join_what_they_know() -> None:
    async with api() as server:
        put(server, d__Job__other=oom_record("d/Job/other"))
        async with scene(server) as made:
            await made.bound("a")
            put(
                server,
                d__Job__train=oom_record(least_mib=7_000, ends=["x"], note="mine"),
                new="?",
            )
            made.fails("a")
            await until(lambda: (e := entry(server)) and e.times == 2)
            found = json.loads(stored(server)[KEY])
            assert (found["least_mib"], found["note"]) == (7_000, "mine")
            assert found["ends"][0] == "x"
            assert made.known[JOB].times == 2
            assert made.known["d/Job/other"] == OomRecord(1, 1_000)
            assert stored(server)["new"] == "?"
            assert made.parts.oom_history.counts["conflict"] == 1


BROKEN = {
    "d.Job.train": "{",
    "d.Job.a": "[]",
    "d.Job.b": oom_record("d/Job/c"),
    "d.Job.d": oom_record("d/Job/d", times=-1),
    "d.Job.e": oom_record("d/Job/e", least_mib=2**40),
    "README": "lessons of Weft",
}


async def test_what_cannot_be_read_is_told_once_and_stays(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "weft.cluster"):
        async with api() as server:
            good = {"d.Job.good": oom_record("d/Job/good")}
            server.add("configmaps", {"metadata": NAMED, "data": {**BROKEN, **good}})
            async with scene(server) as made:
                assert made.known == {"d/Job/good": OomRecord(1, 1_000)}
                await made.bound("a")
                made.fails("a")
                server.add("pods", made_by(pod("b", 2_000), name="next"))
                await until(lambda: (p := made.live.pod("d", "b")) and p.spec.node_name)
                made.fails("b")
                await until(lambda: entry(server, "d/Job/next"))
                assert {key: stored(server)[key] for key in BROKEN} == BROKEN
                assert made.parts.oom_history.unreadable == BROKEN.keys()
                assert made.known[JOB].times == 1
                put(server, d__Job__train=oom_record(least_mib=9_000))  # somebody mended it
                server.add("pods", made_by(pod("c", 2_000), name="next"))
                await until(lambda: (p := made.live.pod("d", "c")) and p.spec.node_name)
                made.fails("c")
                await until(lambda: made.parts.oom_history.unreadable == BROKEN.keys() - {KEY})
                assert made.known[JOB].least_mib == 9_000
    said = [r.getMessage() for r in caplog.records if "is not a valid entry" in r.getMessage()]
    assert len(said) == len(BROKEN)


async def test_of_too_many_workloads_the_one_that_failed_least_recently_goes() -> None:
    async with api() as server:
        data = {
            key_of(f"d/Job/j{n}"): oom_record(f"d/Job/j{n}", at=f"2025-01-01T00:{n:04}:00Z")
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


async def test_ends_that_come_together_are_one_write() -> None:
    async with api(node(count=8)) as server, scene(server) as made:
        for number in range(8):
            await made.bound(f"p{number}")
        for number in range(8):
            made.fails(f"p{number}")
        await until(lambda: made.parts.ends.count == 8)
        await until(lambda: (e := entry(server)) and e.times == 2)
        assert made.parts.oom_history.counts["written"] <= 2


async def test_nothing_is_written_without_the_lease() -> None:
    allowed: list[bool] = []
    may: Callable[[float], bool] = lambda _: bool(allowed)  # noqa: E731
    async with api() as server, scene(server, lease=LeaseStub(may)) as made:
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


def test_keys_are_valid_short_and_each_workloads_own() -> None:
    names = [
        "ml/Deployment/web",
        "ml/Deployment/web.v2",
        "ml.v2/Deployment/web",
        "ml/Job/" + "a" * 250,
        "ml/Job/" + "a" * 251,
        "ml/application/my app",
        "ml/application/my-app",
        "ml/application/my_app",
        "ml/application/a/b",
        "ml/application/日本",
        "ml/application/..",
        "/x/y",
        "u-1",
    ]
    keys = [key_of(name) for name in names]
    assert keys[0] == "ml.Deployment.web"
    assert len(set(keys)) == len(names)
    for key in keys:
        assert len(key) <= 253
        assert key.replace("-", "").replace("_", "").replace(".", "").isascii()
        assert key.replace("-", "").replace("_", "").replace(".", "").isalnum()
        assert not key.startswith(".")


async def test_only_who_decides_lets_the_successor_go_first() -> None:
    """A follower's lessons hold, but the queue's head is for pods that it saw end while it led."""

    async with (
        api() as server,
        scene(server) as leader,
        scene(server, lead=False) as follower,
    ):
        await leader.bound("a")
        leader.fails("a")
        for one in (leader, follower):
            await until(lambda one=one: one.known.get(JOB))  # type: ignore[misc]
        successor = leader.live.parse(leader.live.pod("d", "a"))  # type: ignore[arg-type]
        assert successor.workload == JOB
        assert leader.live.engine.oom_history.goes_first(successor)
        assert not follower.live.engine.oom_history.goes_first(successor)


def test_a_lesson_nested_too_deeply_is_none_of_ours() -> None:
    deep = "[" * 5000 + "]" * 5000
    with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
        entry_of("a", '{"workload": "a", "times": 1, "least_mib": 1, "more": ' + deep + "}")
