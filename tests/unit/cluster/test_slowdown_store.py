"""Observed slowdowns are kept in a ConfigMap: bans hold for the next process, whatever happened."""

import asyncio
import json
import logging
from typing import Any

import msgspec
import pytest
from live_world import until
from slowdown_observer_world import NAMED, Ahead, Scene, api, scene, stored

from fakes.api_server import FakeApiServer
from weft.cluster.stores.slowdown_store import EVERY_S, KEY, MOST_BYTES, fitting, joined
from weft.interference.observed_slowdown import (
    BAN_NS,
    MOST_BANS,
    MOST_PAIRS,
    Ban,
    ObservationRecord,
    ObservedPair,
    ObservedSlowdowns,
    decode,
    encode,
)
from weft.model.interference_table import INTERFERENCE, InterferenceTable, InterferenceView

MIB = 1 << 20
SCHEMA = "weft.dev/observed/v1"
DEEP = "[" * 50_000


def put(server: FakeApiServer, text: str) -> None:
    server.add("configmaps", {"metadata": NAMED, "data": {KEY: text, "README": "by hand"}})


def kept_bans(server: FakeApiServer) -> tuple[Ban, ...]:
    """The bans that a process that comes after would go by; none where nobody can read them."""
    try:
        return decode(json.dumps(stored(server))).bans
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return ()


def ban(until_ns: int, model: str = "T4", one: str = "serve", other: str = "train") -> Ban:
    return Ban(model, one, other, until_ns)


class Unhurried(Ahead):
    """A clock on which a sleep of a minute goes on for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep = 0

    async def sleep(self, seconds: float) -> None:
        if seconds < EVERY_S:
            return await super().sleep(seconds)
        self.asleep += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.asleep -= 1


async def keeps_apart(made: Scene) -> None:
    """A new pod of the one application is not placed beside the other one that runs."""
    made.add("anew", "train", "best-effort")
    await until(lambda: made.live.pod("d", "anew") is not None)
    await until(made.live.engine.queue.waiting)
    assert not made.is_bound("anew")


@pytest.mark.parametrize("point", ["quietly", "once it is kept", "without an answer"])
async def test_the_ban_holds_for_the_next_process(point: str) -> None:
    clock = Ahead()
    async with api() as server:
        async with scene(server, quietly=point == "quietly", clock=clock) as first:
            if point == "without an answer":
                server.fault("lose-answer", path="eviction", times=1_000)
            await first.slow()
            await until(lambda: first.deleting("train"))
            if point != "quietly":
                await until(lambda: kept_bans(server))  # pairs may be written before
        server.remove("pods", "train", "d")
        assert len(stored(server)["bans"]) == 1
        async with scene(server, pods=False, clock=clock) as second:
            assert second.slowdown_observer.banned == 1
            (told,) = second.tables()
            view = InterferenceView(msgspec.convert(told.value, InterferenceTable))
            pair = view.index_of("serve"), view.index_of("train")
            assert told.policy == INTERFERENCE
            assert view.of("T4").upper[pair] == float("inf")
            await keeps_apart(second)
            clock.passed_s += BAN_NS / 1e9 - 60
            await second.look()
            assert second.slowdown_observer.banned == 1
            clock.passed_s += 60
            await second.look()  # it is told at once that a ban is over
            assert second.slowdown_observer.banned == 0
            view = InterferenceView(msgspec.convert(second.tables()[-1].value, InterferenceTable))
            assert view.of("T4").upper[pair] == pytest.approx(0.69, abs=0.03)  # as measured


@pytest.mark.parametrize("fault", ["lost", "500", "conflict"])
async def test_a_ban_whose_write_failed_is_written_again_though_nothing_else_happens(
    fault: str,
) -> None:
    clock = Ahead()
    async with api() as server, scene(server, clock=clock) as made:
        if fault == "conflict":
            put(server, encode(ObservationRecord()))
        elif fault == "500":
            server.fault("status", path="configmaps", method="POST", code=500, times=3)
        else:
            server.fault("lose-request", path="configmaps", method="POST", times=3)
        await made.slow()
        await until(lambda: made.deleting("train"))
        await until(lambda: kept_bans(server))
        assert made.slowdown_store.counts["conflict" if fault == "conflict" else "failed"]


async def test_a_ban_does_not_wait_for_the_minute_that_pairs_wait_for() -> None:
    clock = Unhurried()

    async with api() as server, scene(server, clock=clock) as made:
        await made.look(serve=95, train=90)  # pairs, in a minute
        await until(lambda: clock.asleep)
        await made.slow()
        await until(lambda: made.deleting("train"))
        await until(lambda: kept_bans(server))


async def test_who_is_protected_by_a_budget_is_kept_apart_from_nobody() -> None:
    async with api() as server, scene(server) as made:
        server.fault("status", path="eviction", code=429, times=1_000)
        await made.slow()
        await until(made.refusals)
        await made.idle()
        assert made.slowdown_observer.banned == 0
        assert not kept_bans(server)


async def test_who_ends_while_an_eviction_is_asked_keeps_the_two_apart() -> None:
    async with api() as server:
        async with scene(server) as first:
            held = server.fault("delay", path="eviction")
            await first.slow()
            await held.struck.wait()
        held.gate.set()
        assert len(stored(server)["bans"]) == 1  # the pod may be going


async def test_what_was_seen_of_pairs_is_kept_and_taken_up_again() -> None:
    clock = Ahead()
    async with api() as server:
        async with scene(server, clock=clock) as first:
            for _ in range(4):
                await first.look(serve=95, train=90)
            await until(lambda: stored(server))
        found = {(p["target"], *p["others"]): p for p in stored(server)["pairs"]}
        assert found.keys() == {("serve", "train"), ("train", "serve")}
        assert len(found["train", "serve"]["values"]) == 4
        async with scene(server, pods=False, clock=clock) as second:
            experience = second.slowdown_store.experience
            assert len(experience.kept(second.slowdown_store.now_ns()).pairs) == 2
            view = InterferenceView(msgspec.convert(second.tables()[-1].value, InterferenceTable))
            pair = view.index_of("train"), view.index_of("serve")
            assert view.of("T4").mean[pair] == pytest.approx(0.1054, abs=0.001)


async def test_a_neighbour_that_does_not_run_yet_teaches_nothing() -> None:
    async with api() as server, scene(server) as made:
        await made.phase("train", "Pending")
        for _ in range(3):
            await made.look(serve=100)
        kept = made.slowdown_store.experience.kept(0)
        assert made.seen
        assert kept.pairs == ()
        await made.phase("train", "Running")
        await made.look(serve=95)
        (pair,) = made.slowdown_store.experience.kept(0).pairs
        assert (pair.target, pair.others, len(pair.values)) == ("serve", ("train",), 1)


HOSTILE = [
    "",
    "{",
    "[]",
    "null",
    "42",
    '"text"',
    DEEP,
    "\x00",
    "{}" * 1000,
    '{"schema": "weft.dev/observed/v2"}',
    '{"schema": "weft.dev/observed/v1", "bans": 5}',
    '{"schema": "weft.dev/observed/v1", "pairs": [{"gpu_model": 5}]}',
    json.dumps(
        {
            "schema": SCHEMA,
            "pairs": [
                {
                    "gpu_model": "T4",
                    "target": "a",
                    "others": ["b"],
                    "mean": 1e300,
                    "values": [1e300],
                }
            ],
        }
    ),
    json.dumps(
        {
            "schema": SCHEMA,
            "pairs": [{"gpu_model": "T4", "target": "a", "others": [], "mean": 0.1, "values": []}],
        }
    ),
    json.dumps(
        {
            "schema": SCHEMA,
            "bans": [{"gpu_model": "T4", "one": "a", "other": "b", "until_ns": 10**40}],
        }
    ),
    json.dumps(
        {"schema": SCHEMA, "bans": [{"gpu_model": "T4", "one": "a", "other": "b", "until_ns": -5}]}
    ),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_whatever_stands_there_the_process_leads_and_writes_its_own(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "weft.cluster"):
        async with api() as server:
            put(server, text)
            async with scene(server) as made:
                assert made.slowdown_observer.banned <= 1
                await made.slow()
                await until(lambda: made.deleting("train"))
                await until(lambda: "serve" in [b.application for b in kept_bans(server)])
                whole = server.get("configmaps", NAMED["name"], NAMED["namespace"])["data"]
                assert whole["README"] == "by hand"
                assert made.slowdown_store.unreadable <= 1
    assert caplog.text.count("cannot be read and is overwritten") <= 1
    assert "Traceback" not in caplog.text
    assert max(map(len, caplog.text.splitlines())) < 1_000


async def test_a_ban_that_would_never_end_is_as_long_as_a_new_one() -> None:
    async with api() as server:
        put(server, encode(ObservationRecord(bans=(ban(2**62),))))
        clock = Ahead()
        async with scene(server, pods=False, clock=clock) as made:
            assert made.slowdown_observer.banned == 1
            clock.passed_s += BAN_NS / 1e9 + 1
            assert made.slowdown_observer.banned == 0


async def test_who_wrote_meanwhile_loses_nothing() -> None:
    clock = Ahead()
    async with api() as server, scene(server, clock=clock) as made:
        theirs = ban(made.slowdown_store.now_ns() + 60 * 10**9, one="other", other="x")
        put(server, encode(ObservationRecord(bans=(theirs,))))
        await made.slow()
        await until(lambda: made.deleting("train"))
        await until(lambda: len(kept_bans(server)) == 2)
        assert made.slowdown_store.counts["conflict"] >= 1
        assert made.slowdown_observer.banned == 2


async def test_without_an_api_that_keeps_it_pods_are_evicted_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "weft.cluster"):
        async with api() as server:
            for method in ("GET", "POST", "PATCH"):
                server.fault(
                    "status",
                    path="configmaps/weft-observed",
                    method=method,
                    code=403,
                    times=1_000_000,
                )
            server.fault(
                "status",
                path="namespaces/kube-system/configmaps",
                method="POST",
                code=403,
                times=1_000_000,
            )
            async with scene(server) as made:
                await made.slow()
                await until(lambda: made.deleting("train"))
                await until(lambda: made.slowdown_observer.banned == 1)
                server.remove("pods", "train", "d")
                await keeps_apart(made)
    assert caplog.text.count("are not stored in kube-system/weft-observed") == 1


async def test_a_mistake_of_ours_in_keeping_apart_leaves_the_eviction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with api() as server, scene(server) as made:

        def wrong(*_: Any) -> None:
            raise ZeroDivisionError("ours")

        monkeypatch.setattr(made.slowdown_store.experience, "ban", wrong)
        await made.slow()
        await until(lambda: made.deleting("train"))
        await until(lambda: made.slowdown_observer.errors == 1)


def test_what_is_kept_fits_into_a_config_map() -> None:
    name = "a" * 253
    found = ObservedSlowdowns(InterferenceView().source)
    for number in range(MOST_PAIRS + 500):
        for _ in range(30):
            found.saw("NVIDIA-H100-80GB-HBM3", f"{number}-{name}"[:253], [name], 1.23456)
    for number in range(MOST_BANS + 500):
        found.ban("NVIDIA-H100-80GB-HBM3", f"{number}-{name}"[:253], name, 10**18)
    kept, text = found.kept(10**18), fitting(found.kept(10**18))
    assert len(encode(kept)) > MIB > len(text)
    some = decode(text)
    assert some.bans == kept.bans
    assert some.pairs == kept.pairs[-len(some.pairs) :]
    assert len(some.pairs) > 100


def test_the_bound_is_of_bytes_whatever_the_letters_are() -> None:
    found = ObservedSlowdowns(InterferenceView().source)
    for number in range(MOST_BANS):
        found.ban("T4", f"{number}-" + "\U0001f4a9" * 240, "\U0001f4a9" * 240, 10**18)
    text = fitting(found.kept(10**18))
    assert len(text.encode()) <= MOST_BYTES
    assert len(decode(text).bans) > 100


def test_joined_knows_what_both_know() -> None:
    pair = ObservedPair("T4", "a", ("b",), 0.1, (0.1,))
    mine = ObservationRecord((pair,), (ban(100), ban(900, other="x")))
    newer = msgspec.structs.replace(pair, mean=0.5)
    stored = ObservationRecord(
        (newer, ObservedPair("T4", "c", ("d",), 0.2, (0.2,))), (ban(200), ban(40, one="z"))
    )
    both = joined(mine, stored, 50)
    assert [(p.target, p.mean) for p in both.pairs] == [("c", 0.2), ("a", 0.1)]
    assert {(b.application, b.other): b.until_ns for b in both.bans} == {
        ("serve", "train"): 200,
        ("serve", "x"): 900,
    }
