"""A recorded day beside the same day under another policy."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, redirect_stdout
from functools import cache, partial
from io import StringIO
from pathlib import Path

import aiohttp
import msgspec
import pytest

from weft.cli.console import _decisions, _simulating, _without_inputs
from weft.cli.main import main
from weft.console.comparison import MOST_KEPT, BothPictures, ComparedDay, Comparisons
from weft.console.picture import Picture, PictureMaker, PodFacts, ShownNode, ShownPod
from weft.console.recorded import MOST_MOMENTS, DaySums, RecordedSource
from weft.console.server import ConsoleServer
from weft.core.engine import Engine, PodAdded
from weft.core.engine.team_queues import charge_of
from weft.core.framework import Policy, Profile
from weft.core.policies.catalog import built_in
from weft.core.policies.packing import BestFit
from weft.core.record import explain
from weft.core.record.passing import RecordedRun
from weft.testing import node, pod

PATIENCE_S = 600
"""Days are simulated at low priority: beside others that use all cores, a second of computing takes
up to a minute. Nothing waits for longer than it has to."""


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("day"), pods=60)


def made(folder: Path, pods: int) -> Path:
    """Make a day that first-fit decided: so much comes that pods wait."""
    nodes, trace, day = folder / "nodes.csv", folder / "pods.csv", folder / "day.jsonl"
    weft("generate", "nodes", nodes, "--gpus", 16)
    weft("generate", "pods", trace, "--gpus", 16, "--count", pods, "--load", 3)
    days = ("--timed", "--decisions", day, "--output", "csv")
    weft("simulate", "--nodes", nodes, "--pods", trace, "--policy", "first-fit", *days)
    return day


def weft(*words: object) -> None:
    """Run the command in this process."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()):
        patch.setattr(sys, "argv", ["weft", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code


def copying(day: Path, out: Path) -> list[str]:
    """Return the words of a process that writes this day again."""
    return [
        sys.executable,
        "-ISc",
        f"open({str(out)!r}, 'wb').write(open({str(day)!r}, 'rb').read())",
    ]


def opened(path: Path, beside: RecordedSource | None = None) -> RecordedSource:
    create = built_in().create
    run = RecordedRun(path, create)
    times = (None, None) if beside is None else (run.offset_s, beside.elapsed_s)
    return RecordedSource(run, path.name, lambda name: explain(path, name, create), *times)


@cache
def recorded(day: Path) -> RecordedSource:
    return opened(day)


def comparisons_of(
    day: Path,
    command: Callable[[str, Path], Sequence[str]] | None = None,
    longest_s: float = PATIENCE_S,
) -> Comparisons:
    def simulating(policy: str, out: Path) -> list[str]:
        return _simulating(day, policy, out)

    source = recorded(day)
    return Comparisons(
        source,
        ("first-fit", "fgd"),
        command or simulating,
        lambda out: opened(out, beside=source),
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
    return row.gpu_milli, row.promised_mib, row.placed, row.waiting, row.idle


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


def test_a_share_of_memory_alone_is_a_part_of_a_gpu() -> None:
    """As in `weft queues` and `weft usage`: a pod has the larger of its parts of memory and
    cores."""
    cluster = [node("n", gpus=2, memory_mib=16_000)]
    engine = Engine([Profile("weft", [BestFit()])], cluster)
    engine.handle(PodAdded(pod("a", memory_mib=4_000)), 0)
    engine.handle(PodAdded(pod("b", memory_mib=4_000, milli=500)), 0)
    picture = PictureMaker(engine).picture(0.0, lambda uid: PodFacts("d", uid))
    assert sorted(pod.gpu_milli for pod in picture.pods.values()) == [250, 500]
    assert DaySums.of(picture, 0.0).gpu_milli == 750


def test_gpus_promised_leave_out_kept_places_and_nodes_that_are_gone() -> None:
    """As in `weft queues` and on the namespaces' page."""
    pods = {
        "runs": ShownPod("runs", "d", "runs", "n1", gpu_milli=500),
        "gone": ShownPod("gone", "d", "gone", "n2", gpu_milli=300),
        "kept": ShownPod("kept", "d", "kept", "n1", kept=True, gpu_milli=200),
    }
    sums = DaySums.of(Picture(0.0, nodes={"n1": ShownNode("n1")}, pods=pods), 0.0)
    assert (sums.gpu_milli, sums.placed) == (500, 2)


async def test_a_long_day_is_what_was_so_at_each_moment(tmp_path: Path) -> None:
    day, other = made(tmp_path, pods=300), tmp_path / "other.jsonl"
    simulating = _simulating(day, "fgd", other)
    weft(*simulating[simulating.index("weft") + 1 :])
    source = recorded(day)
    comparisons = comparisons_of(day, lambda policy, out: copying(other, out))
    found = await ended(comparisons, "fgd")
    for path, shown in ((day, found.recorded), (other, found.other)):
        times, states = so(path)
        assert len(times) > 1.4 * MOST_MOMENTS
        then = [states[bisect_right(times, at_s) - 1] for at_s in source.elapsed_s]
        assert [(row.placed, row.waiting, row.gpu_milli) for row in shown] == then


def so(path: Path) -> tuple[list[float], list[tuple[int, int, int]]]:
    """Return each event's time since the first, and the pods placed, waiting, and the promised."""
    run = RecordedRun(path, built_in().create)
    times, states = list[float](), list[tuple[int, int, int]]()
    for at_s, engine in run.states():
        times.append(round(at_s - run.at_s[0], 6))
        waiting = sum(1 for _ in engine.queue.waiting())
        table = engine.ledger.table
        promised = sum(
            charge_of(each.placement, table.nodes[table.row_of[each.placement.node]]).gpu_milli
            for each in engine.ledger.holdings.values()
        )
        states.append((len(engine.ledger.holdings), waiting, promised))
    return times, states


SLOW = [sys.executable, "-c", "import time; time.sleep(600)"]
BROKEN = [sys.executable, "-c", "import sys; sys.exit('this day cannot be run')"]


async def test_one_day_is_simulated_at_a_time_and_ends_with_the_console(day: Path) -> None:
    comparisons = comparisons_of(day, lambda policy, out: SLOW)
    assert comparisons.day("fgd").state == "simulating"
    busy = comparisons.day("first-fit")
    assert (busy.policy, busy.text) == ("fgd", "fgd is simulated first")
    await asyncio.sleep(0)
    began = time.monotonic()
    await comparisons.close()
    assert time.monotonic() - began < 300


READS_FOR_LONG = """
import asyncio, sys, threading, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from test_console_comparison import opened
from weft.console.comparison import Comparisons

async def main(day):
    reading = threading.Event()
    def read(out):
        reading.set()
        time.sleep(600)
    write = lambda policy, out: [sys.executable, "-c", f"open({str(out)!r}, 'w')"]
    comparisons = Comparisons(opened(day), ["fgd"], write, read)
    comparisons.day("fgd")
    while not reading.is_set():
        await asyncio.sleep(0.01)
    await comparisons.close()

asyncio.run(main(Path(sys.argv[2])))
"""


def test_the_end_of_the_console_waits_for_no_day_that_is_being_read(day: Path) -> None:
    words = [sys.executable, "-c", READS_FOR_LONG, str(Path(__file__).parent), str(day)]
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


async def test_a_day_that_takes_too_long_or_cannot_be_run_says_so(day: Path) -> None:
    found = await ended(comparisons_of(day, lambda policy, out: SLOW, longest_s=0.3), "fgd")
    assert found.state == "failed"
    assert found.text.startswith("took longer than 0.3 s")
    found = await ended(comparisons_of(day, lambda policy, out: BROKEN), "fgd")
    assert (found.state, found.text) == ("failed", "this day cannot be run")


async def test_a_day_that_failed_is_tried_again_and_takes_no_place(day: Path) -> None:
    runs = list[str]()

    def command(policy: str, out: Path) -> Sequence[str]:
        runs.append(policy)
        good = policy.startswith("good") or runs.count(policy) > 1
        return copying(day, out) if good else BROKEN

    comparisons = comparisons_of(day, command)
    good = [f"good-{number}" for number in range(MOST_KEPT - 1)]
    for policy in good:
        assert (await ended(comparisons, policy)).state == "ready"
    for policy in ("bad-0", "bad-1", "bad-2"):
        assert (await ended(comparisons, policy)).state == "failed"
    assert (await ended(comparisons, "bad-2")).state == "ready"
    for policy in good:
        assert comparisons.pictures(policy, 0) is not None
        assert comparisons.day(policy).state == "ready"
    assert runs == [*good, "bad-0", "bad-1", "bad-2", "bad-2"]


async def test_a_file_in_the_working_directory_is_not_run(
    day: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("weft", "msgspec", "typer"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('another file was run')")
    monkeypatch.chdir(tmp_path)
    found = await ended(comparisons_of(day), "fgd")
    assert (found.state, found.text) == ("ready", "")


NEEDY = """
from weft.core.framework import Policy


class {name}(Policy):
    name = "{name}"

    def __init__(self{option}):
        super().__init__()
"""


def test_a_policy_that_cannot_be_simulated_is_not_offered(day: Path, tmp_path: Path) -> None:
    files = []
    for name, option in (("Needy", ", most: int"), ("Plain", "")):
        files.append(str(tmp_path / f"{name}.py"))
        Path(files[-1]).write_text(NEEDY.format(name=name, option=option))
    _, comparisons = _decisions(day, files)
    assert "fgd" in comparisons.policies
    assert {"Needy", "Plain"}.isdisjoint(comparisons.policies)


def test_an_installed_policy_that_needs_an_option_is_not_offered() -> None:
    class InstalledNeedy(Policy):
        name = "needy"

        def __init__(self, most: int) -> None:
            super().__init__()

    policies = built_in()
    policies.register(InstalledNeedy)
    offered = [*_without_inputs(policies)]
    assert "needy" not in offered
    assert "fgd" in offered


@asynccontextmanager
async def served(day: Path, answered: threading.Event) -> AsyncIterator[aiohttp.ClientSession]:
    """A console of this day, as the command makes it, but that what was simulated is read only once
    this is set."""
    source, of_command = _decisions(day, [])
    assert isinstance(source, RecordedSource)

    def open_day(out: Path) -> RecordedSource:
        assert answered.wait(PATIENCE_S)
        return opened(out, beside=source)

    simulating = partial(_simulating, day)
    comparisons = Comparisons(source, of_command.policies, simulating, open_day)
    server = ConsoleServer(source, comparisons=comparisons)
    port = await server.listen("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield session
    finally:
        await server.close()


async def test_the_page_gets_a_day_and_its_pictures_while_others_are_answered(day: Path) -> None:
    answered = threading.Event()
    async with served(day, answered) as session, asyncio.timeout(PATIENCE_S):

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
        states = list[str]()
        while "ready" not in states:
            told = msgspec.json.decode((await get("/api/compare?policy=fgd"))[1], type=ComparedDay)
            assert told.state != "failed", told.text
            states += [told.state] * (told.state not in states)
            assert (await get("/healthz"))[0] == 200
            if told.state == "reading":
                answered.set()  # it is read in a thread, which waits for this
            await asyncio.sleep(0.02)
        assert states == ["simulating", "reading", "ready"]
        status, said = await get("/api/compare?policy=fgd&number=3")
        assert status == 200
        assert msgspec.json.decode(said, type=BothPictures).other.gpus
        assert (await get("/api/compare?policy=fgd&number=100000"))[0] == 404
