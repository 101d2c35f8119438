"""Pods that run out of GPU memory: learnt once from each end, and known to the next process."""

import logging

import pytest
from live_world import api, bind, pod, until
from msgspec.structs import replace
from oom_history_world import JOB, NAMED, entry, holders, made_by, scene, stored


async def test_the_next_pod_is_charged_more_and_so_it_is_after_a_restart() -> None:
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


async def test_restarts_in_one_pod_count_each_end_once() -> None:
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
        assert made.parts.ends.count == 2


@pytest.mark.parametrize("point", ["before it was written", "before the answer came", "after"])
async def test_a_process_that_dies_meanwhile_has_learnt_once(point: str) -> None:
    """`die` at each point between learning and knowing that it is kept; the pod is still there."""

    async with api() as server:
        async with scene(server, quietly=False) as first:
            await first.bound("a")
            if point == "before it was written":
                server.fault("lose-request", path="configmaps", times=1_000_000)
            elif point == "before the answer came":
                server.fault("lose-answer", path="configmaps", times=1_000_000)
            first.fails("a")
            if point == "before it was written":
                await until(lambda: first.parts.oom_history.counts["failed"])
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


async def test_the_nodes_own_memory_teaches_nothing() -> None:
    async with api() as server, scene(server) as made:
        await made.bound("a")
        made.fails("a", reason="OOMKilled", code=137)
        await until(lambda: not holders(made))
        await made.bound("b")
        assert made.charged("b") == (2_000, 0)
        assert made.parts.ends.count == 0
        assert stored(server) == {}


async def test_a_pod_that_nobody_makes_again_teaches_nothing() -> None:
    async with api() as server, scene(server) as made:
        server.add("pods", pod("a", 2_000))
        await until(lambda: (p := made.live.pod("d", "a")) and p.spec.node_name)
        made.fails("a")
        await until(lambda: not holders(made))
        assert made.parts.ends.count == 1
        assert made.known == {}


async def test_a_pod_that_another_scheduler_placed_teaches_by_its_marks() -> None:
    async with api() as server, scene(server) as made:
        for name in ("marked", "unmarked"):
            server.add("pods", made_by(pod(name, 3_000, scheduler="other"), name=name))
        bind(server, "marked", 1, "2026-01-01T00:00:01Z", memory_mib=3_000)
        bind(server, "unmarked", None, "2026-01-01T00:00:01Z")
        await until(lambda: len(holders(made)) == 2)
        made.fails("unmarked")
        made.fails("marked")
        await until(lambda: made.parts.ends.count == 2)
        assert made.known.keys() == {"d/Job/marked"}
        assert made.known["d/Job/marked"].least_mib == 3_750


async def test_what_the_pod_was_seen_to_use_counts() -> None:
    async with api() as server, scene(server) as made:
        await made.bound("a")
        (uid,) = holders(made)
        made.live.hooks.peaks.append({uid: 4_000}.__getitem__)
        made.fails("a")
        await until(lambda: made.known.get(JOB))
        assert made.known[JOB].least_mib == 5_000


async def test_a_follower_learns_and_writes_only_once_it_leads() -> None:
    async with api() as server, scene(server) as leader:
        await leader.bound("a")
        server.fault("status", path="configmaps", method="POST", code=500, times=1_000_000)
        async with scene(server, lead=False) as follower:
            leader.fails("a")
            await until(lambda: follower.known.get(JOB))
            await until(lambda: leader.parts.oom_history.counts["failed"])
            assert follower.parts.oom_history.counts == {
                "written": 0,
                "conflict": 0,
                "failed": 0,
            }
            server.faults.forget()
            await leader.live.stop()  # it writes what is left
            first = await until(lambda: entry(server))
            server.remove("configmaps", NAMED["name"], NAMED["namespace"])
            await follower.live.lead(afresh=False)
            second = await until(lambda: entry(server))
            assert replace(second, at=first.at) == first, "each says when it heard of the end"
            assert follower.known[JOB].times == 1


async def test_without_an_api_that_answers_memory_has_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "weft.cluster"):
        async with api() as server:
            server.fault("status", path="configmaps/", code=403, times=1_000_000)
            server.fault("status", path="configmaps", method="POST", code=403, times=1_000_000)
            async with scene(server) as made:
                await made.bound("a")
                made.fails("a")
                await until(lambda: made.known.get(JOB))
                await made.bound("b")
                assert made.charged("b") == (2_500, 0)
                await until(lambda: made.parts.oom_history.counts["failed"] > 3)
                said = [
                    r
                    for r in caplog.records
                    if "out-of-memory history is not stored" in r.getMessage()
                ]
                assert len(said) == 1
                server.faults.forget()
                await until(lambda: entry(server))
                await until(lambda: made.parts.oom_history.counts["written"] == 1)
