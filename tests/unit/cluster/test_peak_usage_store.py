"""Peaks of pods are kept beside the OOM history: the next process expects no less."""

import json
import logging

import msgspec
import pytest
from live_world import api, until
from oom_history_world import JOB, KEY, Scene, oom_record, put, scene, stored

from fakes.api_server import FakeApiServer
from weft.cluster.stores import peak_usage
from weft.core.engine import Command, Event, OomHistoryLearnt, PeakLearnt, SignalsChanged
from weft.core.engine.peak_usage import PeakUsage
from weft.core.framework.signals import snapshot

PEAKS = "peaks.v1.json"
KIND = ("d", JOB, "2000 mib 1")


async def completes(made: Scene, name: str, most_mib: int) -> None:
    """A pod of the job that is watched to its end."""
    await made.bound(name)
    pod = made.live.pod("d", name)
    assert pod is not None
    told = snapshot(
        made.live.engine.signals.version + 1, 0, [], {}, peaks_mib={pod.metadata.uid: most_mib}
    )
    made.live.handle(SignalsChanged(told))
    made.server.update("pods", name, {"status": {"phase": "Succeeded"}}, "d")
    await until(lambda: pod.metadata.uid not in made.live.engine.ledger.holdings)


def peaks(server: FakeApiServer) -> list[PeakLearnt]:
    text = stored(server).get(PEAKS)
    return list(peak_usage.decode(text)) if text else []


async def test_the_next_process_expects_what_this_one_learnt() -> None:
    heard: list[Event] = []
    async with api() as server:
        async with scene(server) as first:
            for number, most_mib in enumerate((700, 900, 800)):
                await completes(first, f"p{number}", most_mib)
            assert first.live.engine.peaks.known == {KIND: PeakUsage(900, 3)}
            await until(lambda: peaks(server) == [PeakLearnt(*KIND, 900, 3)])
        async with scene(server, lead=False) as second:
            decide = second.live.decide

            def hear(event: Event, now_ns: int) -> list[Command]:
                heard.append(event)
                return decide(event, now_ns)

            second.live.decide = hear
            await second.live.lead(afresh=False, term=4)
            assert second.live.engine.peaks.known == {KIND: PeakUsage(900, 3)}
            told = [event for event in heard if isinstance(event, OomHistoryLearnt)]
            assert told == [OomHistoryLearnt({}, (PeakLearnt(*KIND, 900, 3),))]
            writes = second.parts.oom_history.counts["written"]
        assert writes == 0


async def test_what_was_learnt_last_is_written_when_the_process_ends() -> None:
    async with api() as server:
        async with scene(server) as made:
            await completes(made, "a", 700)
        assert peaks(server) == [PeakLearnt(*KIND, 700, 1)]


async def test_lessons_of_a_weft_that_kept_no_peaks_are_read_and_both_stand_side_by_side() -> None:
    async with api() as server:
        put(server, d__Job__train=oom_record(least_mib=2_500))
        async with scene(server) as made:
            assert made.known[JOB].least_mib == 2_500
            await completes(made, "a", 700)
            await until(lambda: peaks(server))
            await made.bound("b", 1_999)
            made.fails("b")
            await until(lambda: made.known[JOB].times == 2)
        assert set(stored(server)) == {KEY, PEAKS}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "?",
        "[]",
        '{"peaks": 3}',
        '{"peaks": [' + "[" * 5_000,
        '{"peaks": [{"namespace": "d", "owner": "w", "asks": "a", "most_mib": -1, "runs": 1}]}',
        '{"peaks": [{"namespace": "d", "owner": "w", "asks": "a", "most_mib": 1e30, "runs": 1}]}',
        json.dumps(
            {
                "peaks": [
                    {"namespace": "d", "owner": "w" * 2_000, "asks": "a", "most_mib": 1, "runs": 1}
                ]
            }
        ),
    ],
)
async def test_peaks_that_cannot_be_read_are_told_once_and_learnt_anew(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "weft.cluster"):
        async with api() as server:
            put(server, d__Job__train=oom_record(least_mib=2_500), peaks__v1__json=text)
            async with scene(server) as made:
                assert made.known[JOB].least_mib == 2_500
                assert made.parts.oom_history.unreadable == {PEAKS}
                await completes(made, "a", 700)
                await until(lambda: stored(server)[PEAKS] != text)
                assert peaks(server) == [PeakLearnt(*KIND, 700, 1)]
            assert len([r for r in caplog.records if "holds no peaks" in r.getMessage()]) == 1


async def test_two_that_write_at_once_join_what_they_know() -> None:
    async with api() as server, scene(server) as made:
        await completes(made, "a", 700)
        await until(lambda: peaks(server))
        others = [PeakLearnt(*KIND, 1_500, 2), PeakLearnt("e", "w", "1 mib 1", 5, 1)]
        put(server, peaks__v1__json=msgspec.json.encode({"peaks": others}).decode())
        await completes(made, "b", 600)
        joined = [PeakLearnt("e", "w", "1 mib 1", 5, 1), PeakLearnt(*KIND, 1_500, 2)]
        await until(lambda: peaks(server) == joined)
        assert made.parts.oom_history.counts["conflict"] == 1


def test_only_what_has_room_beside_the_lessons_is_kept_the_newest_of_it() -> None:
    known = {("d", f"w{n:05}", "1 mib 1"): PeakUsage(100, 3) for n in range(10_000)}
    text = peak_usage.encode(known, {})
    assert len(text) <= peak_usage.MOST_BYTES
    found = peak_usage.decode(text)
    assert len(found) > 3_000
    assert found[-1].owner == "w09999"
    assert len(peak_usage.encode(known, {"x": "y" * 850_000})) <= 50_000
    assert peak_usage.encode(known, {"x": "y" * 900_000}) == ""
    assert peak_usage.encode({}, {}) == ""
