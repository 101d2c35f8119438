"""A recorded day beside the same day under another policy."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from weft.cli.console import _decisions, _simulating
from weft.console.comparison import BothPictures, ComparedDay, Comparisons
from weft.console.recorded import DaySums, RecordedSource
from weft.console.server import ConsoleServer
from weft.core.policies.catalog import built_in
from weft.core.record import explain
from weft.core.record.passing import RecordedRun

PATIENCE_S = 120


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day that first-fit decided: so much comes that pods wait."""
    folder = tmp_path_factory.mktemp("day")
    for words in (
        "generate nodes nodes.csv --gpus 16",
        "generate pods pods.csv --gpus 16 --count 60 --load 3",
        "simulate --nodes nodes.csv --pods pods.csv --policy first-fit --timed"
        " --decisions day.jsonl --output csv",
    ):
        command = [sys.executable, "-m", "weft", *words.split()]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "day.jsonl"


def opened(path: Path, *, simulated: bool = False) -> RecordedSource:
    create = built_in().create
    run = RecordedRun(path, create)
    began_s = run.offset_s if simulated else None
    return RecordedSource(run, path.name, lambda name: explain(path, name, create), began_s)


def comparisons_of(
    day: Path, command: Callable[[str, Path], Sequence[str]] | None = None, longest_s: float = 60
) -> Comparisons:
    def simulating(policy: str, out: Path) -> list[str]:
        return _simulating(day, policy, out)

    return Comparisons(
        opened(day),
        ("first-fit", "fgd"),
        command or simulating,
        lambda out: opened(out, simulated=True),
        day.stat().st_size,
        longest_s,
    )


async def ended(comparisons: Comparisons, policy: str) -> ComparedDay:
    async with asyncio.timeout(PATIENCE_S):
        while (found := comparisons.day(policy)).state in ("simulating", "reading"):
            await asyncio.sleep(0.02)
    return found


async def test_the_same_policy_again_gives_the_same_day(day: Path) -> None:
    comparisons = comparisons_of(day)
    found = await ended(comparisons, "first-fit")
    assert (found.state, found.text, found.percent) == ("ready", "", 100)
    assert len(found.recorded) == len(found.other) > 50
    assert [*map(amounts, found.other)] == [*map(amounts, found.recorded)]
    assert max(row.waiting for row in found.recorded) > 0
    for number in range(len(found.recorded)):
        both = comparisons.pictures("first-fit", number)
        assert both is not None
        assert both.other.gpus == both.recorded.gpus
        names = {(pod.name, pod.node) for pod in both.recorded.pods.values()}
        assert {(pod.name, pod.node) for pod in both.other.pods.values()} == names
    with pytest.raises(IndexError):
        comparisons.pictures("first-fit", len(found.recorded))


def amounts(row: DaySums) -> tuple[int, ...]:
    return row.promised_milli, row.promised_mib, row.placed, row.waiting, row.idle


async def test_another_policys_sums_are_those_of_its_pictures(day: Path) -> None:
    comparisons = comparisons_of(day)
    assert comparisons.pictures("fgd", 0) is None
    found = await ended(comparisons, "fgd")
    assert [*map(amounts, found.other)] != [*map(amounts, found.recorded)]
    for number, sums in enumerate(zip(found.recorded, found.other, strict=True)):
        both = comparisons.pictures("fgd", number)
        assert both is not None
        for picture, of_day in zip((both.recorded, both.other), sums, strict=True):
            assert amounts(DaySums.of(picture, 0.0)) == amounts(of_day)


SLOW = [sys.executable, "-c", "import time; time.sleep(60)"]
BROKEN = [sys.executable, "-c", "import sys; sys.exit('this day cannot be run')"]


async def test_one_day_is_simulated_at_a_time_and_ends_with_the_console(day: Path) -> None:
    comparisons = comparisons_of(day, lambda policy, out: SLOW)
    assert comparisons.day("fgd").state == "simulating"
    busy = comparisons.day("first-fit")
    assert (busy.policy, busy.text) == ("fgd", "fgd is simulated first")
    await asyncio.sleep(0)
    began = time.monotonic()
    await comparisons.close()
    assert time.monotonic() - began < 20


async def test_a_day_that_takes_too_long_or_cannot_be_run_says_so(day: Path) -> None:
    found = await ended(comparisons_of(day, lambda policy, out: SLOW, longest_s=0.3), "fgd")
    assert found.state == "failed"
    assert found.text.startswith("took longer than 0.3 s")
    found = await ended(comparisons_of(day, lambda policy, out: BROKEN), "fgd")
    assert (found.state, found.text) == ("failed", "this day cannot be run")


@asynccontextmanager
async def served(day: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A console of this day, as the command makes it."""
    source, comparisons = _decisions(day, [])
    server = ConsoleServer(source, comparisons=comparisons)
    port = await server.listen("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield session
    finally:
        await server.close()


async def test_the_page_gets_a_day_and_its_pictures_while_others_are_answered(day: Path) -> None:
    async with served(day) as session, asyncio.timeout(PATIENCE_S):

        async def get(path: str, **headers: str) -> tuple[int, bytes]:
            async with session.get(path, headers=headers) as answer:
                return answer.status, await answer.read()

        offered = json.loads((await get("/api/about"))[1])["policies"]
        assert {"fgd", "first-fit", "least-stranding"} <= {*offered}
        for path in ("policy=none", "policy=fgd&number=0"):
            assert (await get(f"/api/compare?{path}"))[0] == 404
        other_site = {"Sec-Fetch-Site": "cross-site"}
        assert (await get("/api/compare?policy=fgd", **other_site))[0] == 403
        assert (await get("/api/compare?policy=fgd&number=x"))[0] == 400
        states, slowest_s = set[str](), 0.0
        while "ready" not in states:
            told = msgspec.json.decode((await get("/api/compare?policy=fgd"))[1], type=ComparedDay)
            assert told.state != "failed", told.text
            states.add(told.state)
            began = time.monotonic()
            assert (await get("/healthz"))[0] == 200
            slowest_s = max(slowest_s, time.monotonic() - began)
            await asyncio.sleep(0.02)
        assert "simulating" in states
        assert slowest_s < 5
        status, said = await get("/api/compare?policy=fgd&number=3")
        assert status == 200
        assert msgspec.json.decode(said, type=BothPictures).other.gpus
        assert (await get("/api/compare?policy=fgd&number=100000"))[0] == 404
