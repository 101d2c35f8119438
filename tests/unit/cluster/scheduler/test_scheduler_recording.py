"""Decisions of a running scheduler on record: replayed alike, and a full disk ends no scheduler."""

import asyncio
import contextlib
import resource
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from led_cluster import led
from process_world import add_node, add_pod, node_of, until

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.cluster.leader.leader_parts import LeaderParts
from weft.cluster.scheduler.explain_service import Explainer
from weft.core.engine import SignalsChanged
from weft.core.framework import Profile
from weft.core.framework.signals import FRESH, snapshot
from weft.core.policies.catalog import built_in
from weft.core.policies.fgd import Fgd
from weft.core.record import DecisionLines, Header, PolicyUse, ProfileUse, read, replay
from weft.core.record.side import side_of
from weft.host.decisions_recorder import Recording
from weft.model import BadInputError

HEADER = Header([ProfileUse("weft", [PolicyUse("fgd")])])


@contextlib.asynccontextmanager
async def recorded(
    path: Path, *, lead: bool = True, most_mib: int = 0, meddle: Callable[[], object] | None = None
) -> AsyncIterator[tuple[Recording, FakeApiServer, LeaderParts]]:
    """A cluster whose decisions go to this file; `meddle` is called before it starts to follow."""
    async with (
        FakeApiServer() as server,
        client_of(server) as client,
    ):
        add_node(server)
        parts = led(client, [Profile("weft", [Fgd()])])
        live = parts.live
        recording = Recording(live, HEADER, path, **({"most_mib": most_mib} if most_mib else {}))
        assert str(path) in await recording.start()
        if meddle is not None:
            meddle()
        await live.start()
        if lead:
            await live.lead(afresh=False)
        yield recording, server, parts
        await live.stop()
        await recording.close()


async def test_what_a_running_scheduler_decided_is_replayed_alike(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text("an older file")

    async with recorded(path) as (_, server, _):
        for number in range(9):
            add_pod(server, f"p{number}")
        await until(lambda: sum(bool(node_of(server, f"p{n}")) for n in range(9)) == 8)
    verdict = replay(*read(path), built_in().create)
    assert verdict.identical, verdict
    assert verdict.decisions >= 9
    assert (tmp_path / "decisions.jsonl.previous").read_text() == "an older file"


def look(version: int, gpus: int = 200) -> SignalsChanged:
    """Large enough for a folder of its own."""
    rng, fresh = np.random.default_rng(version), np.full(gpus, FRESH, dtype=np.int8)
    columns = {f"column-{n}": (rng.random(gpus), fresh) for n in range(3)}
    return SignalsChanged(snapshot(version, 0, [("n", n) for n in range(gpus)], columns))


async def test_signals_are_beside_the_file_and_go_with_it_when_it_steps_aside(
    tmp_path: Path,
) -> None:
    path = tmp_path / "decisions.jsonl"

    for run in range(3):
        async with recorded(path, lead=False) as (_, _, parts):
            live = parts.live
            for version in (1, 2):
                live.handle(look(version))
        assert len(list(side_of(path).iterdir())) == 2
        assert replay(*read(path), built_in().create).identical
        previous = tmp_path / "decisions.jsonl.previous"
        assert previous.exists() == (run > 0)
        if run:
            assert replay(*read(previous), built_in().create).identical
    assert len(list(tmp_path.iterdir())) == 4


async def test_signals_that_cannot_be_written_end_the_record_before_the_line_that_needs_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "decisions.jsonl"

    def meddle() -> None:
        side_of(path).write_text("in the way")

    async with recorded(path, lead=False, meddle=meddle) as (recording, _, parts):
        live = parts.live
        live.handle(look(1))
        await until(lambda: bool(recording.failed))
        live.handle(look(2))
    assert replay(*read(path), built_in().create).identical
    assert "SignalsKept" not in path.read_text()


async def test_explaining_does_not_show_in_the_record(tmp_path: Path) -> None:
    """A live explanation tries things out on the ledger; the replay knows nothing of it."""
    path = tmp_path / "decisions.jsonl"

    async with recorded(path) as (_, server, parts):
        for number in range(9):
            add_pod(server, f"p{number}")
        await until(lambda: sum(bool(node_of(server, f"p{n}")) for n in range(9)) == 8)
        waits = next(n for n in range(9) if not node_of(server, f"p{n}"))
        found = await Explainer(parts.live, parts.guard, None).explain("d", f"p{waits}")
        assert found is not None
        assert [one.axis for one in found.changes].count("free") == 1, "ends were tried"
        server.remove("pods", f"p{(waits + 1) % 9}", "d")
        await until(lambda: bool(node_of(server, f"p{waits}")))
    verdict = replay(*read(path), built_in().create)
    assert verdict.identical, verdict


async def test_a_file_that_cannot_be_written_is_told_before_anything_begins(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="--decisions"):
        async with recorded(tmp_path / "no" / "such" / "folder"):
            pass


async def test_a_disk_that_fails_ends_the_record_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"

    def meddle() -> None:
        path.unlink()
        path.mkdir()  # nothing can be appended to a folder

    async with recorded(path, meddle=meddle) as (recording, server, _):
        add_pod(server, "p")
        await until(lambda: bool(recording.failed))
        add_pod(server, "q")
        await until(lambda: node_of(server, "q") == "n")


async def test_a_record_that_has_its_size_ends_whole_and_scheduling_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "decisions.jsonl"

    async with recorded(path, most_mib=1) as (recording, server, parts):
        live = parts.live
        for version in range(1, 7):
            live.handle(look(version, gpus=10_000))
        await until(lambda: bool(recording.failed))
        add_pod(server, "q")
        await until(lambda: node_of(server, "q") == "n")
    files = [path, *side_of(path).iterdir()]
    assert 600_000 < sum(file.stat().st_size for file in files) <= 1 << 20
    verdict = replay(*read(path), built_in().create)
    assert verdict.identical
    kept = path.read_text().count("SignalsKept")
    assert len(files) == 1 + kept
    assert 0 < kept < 6
    (said,) = [r.getMessage() for r in caplog.records if "no longer recorded" in r.getMessage()]
    assert "1 MiB" in said
    assert "--decisions-mib" in said


async def test_only_a_process_that_ends_in_order_closes_its_file(tmp_path: Path) -> None:
    path, crashed = tmp_path / "decisions.jsonl", tmp_path / "crashed.jsonl"
    async with recorded(path) as (_recording, server, _live):
        add_pod(server, "p")
        await until(lambda: b"PodBound" in path.read_bytes())
        crashed.write_bytes(path.read_bytes())  # what a kill leaves
    for file, state in ((path, "verified"), (crashed, "incomplete")):
        header, lines = read(file)
        assert replay(header, lines, built_in().create).identical
        assert lines.check.state == state


async def test_a_batch_that_the_disk_takes_in_part_is_taken_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with recorded(path) as (recording, server, _live):
        await until(
            lambda: path.read_bytes().endswith(b"}\n") and b"LeadershipBegan" in path.read_bytes()
        )
        whole = path.read_bytes()
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 200, hard))
            add_pod(server, "p")
            await until(lambda: bool(recording.failed))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes().startswith(whole)
    header, lines = read(path)
    assert replay(header, lines, built_in().create).identical
    assert (lines.check.state, lines.check.end) == ("verified", "failed")
    assert lines.check.why == "the file ends early: File too large"


async def test_a_file_that_somebody_else_writes_to_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "decisions.jsonl"
    async with recorded(path) as (recording, server, _live):
        await until(lambda: b"NodesChanged" in path.read_bytes())
        with path.open("ab") as file:
            file.write(b"theirs\n")
        add_pod(server, "p")
        await until(lambda: bool(recording.failed))
        add_pod(server, "q")
        await until(lambda: node_of(server, "q") == "n")
    assert path.read_bytes().endswith(b"theirs\n")
    assert "another process changed or replaced the file" in caplog.text


async def test_lines_that_wait_for_a_thread_when_the_process_ends_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled before the thread began with them, and in front of those that came later."""
    monkeypatch.setattr("weft.host.decisions_recorder._EVERY_S", 0.01)
    path, free = tmp_path / "decisions.jsonl", threading.Event()
    async with recorded(path) as (recording, server, _live):
        threads = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(threads)
        threads.submit(free.wait)
        add_pod(server, "p")
        await until(lambda: node_of(server, "p") == "n" and threads._work_queue.qsize() == 1)
        end = recording._last
        assert end is not None

        async def end_once_it_is_free() -> None:
            free.set()
            await end()

        recording._last = end_once_it_is_free
    header, lines = read(path)
    verdict = replay(header, lines, built_in().create)
    assert verdict.identical, verdict
    assert (verdict.decisions, lines.check.state) == (1, "verified")


def test_without_a_bound_nothing_ends_the_record(tmp_path: Path) -> None:
    lines = DecisionLines(side_of(tmp_path / "d"), most_bytes=0)
    lines.take(1 << 60)
    lines.take(1 << 60)
    assert lines.size == 1 << 61
