"""The grid: the same results for any number of processes, and a decisions file whole or not."""

from pathlib import Path

import msgspec
import pytest

from weft.core.framework import Policy
from weft.core.policies.catalog import built_in
from weft.core.policies.packing import FirstFit
from weft.core.record import read, replay
from weft.lab.experiment.run.trace_runs import RunGrid, run_cell
from weft.lab.experiment.spec.experiment import PlannedCell
from weft.lab.experiment.statistics.ranking import run_grid, run_grid_with_holdings
from weft.lab.simulate.arrivals import draw, replayed, resampled
from weft.lab.simulate.openb import TracePod, shape_of
from weft.lab.simulate.scenario import Scenario
from weft.model import BadInputError
from weft.model.errors import PolicyError
from weft.testing import node

PODS = [
    TracePod(f"p{i}", shape_of(100, 100, gpus, milli), gpus, milli, i, i + 20, i)
    for i, (gpus, milli) in enumerate([(1, 500), (1, 1000), (2, 1000), (1, 300)] * 5)
]
WORLD = Scenario([node(f"n{i}", gpus=2, model="T4") for i in range(4)], PODS)


class FailingError(Exception):
    """The error of a broken policy."""


class Broken(FirstFit):
    """Fails in the middle of a run."""

    name = "broken"

    def __init__(self) -> None:
        self.left = 3

    def score_nodes(self, query):  # type: ignore[no-untyped-def]
        self.left -= 1
        if self.left == 0:
            raise FailingError("in the middle")


def make(name: str) -> Policy:
    return Broken() if name == "broken" else built_in().create(name)


def grid(*policies: str, seeds: int = 2, **options: object) -> RunGrid:
    timed = options.get("mode") == "timed"
    arrivals = tuple(
        resampled(len(PODS), 4, seed) if timed else draw(PODS, 4, WORLD.capacity_milli, seed, 1.3)
        for seed in range(42, 42 + seeds)
    )
    return RunGrid(WORLD, policies, arrivals, make, timing=False, **options)  # type: ignore[arg-type]


def first(policy: str) -> PlannedCell:
    return PlannedCell((), policy, 42)


@pytest.mark.parametrize("mode", ["inflation", "timed"])
def test_one_process_and_two_give_equal_results(mode: str) -> None:
    wanted = grid("best-fit", "random", "fgd", mode=mode)
    one, two = run_grid(wanted, 1), run_grid(wanted, 2)
    assert one == two
    assert msgspec.json.encode(one) == msgspec.json.encode(two)
    assert [(run.policy, run.seed) for run in one.runs] == [
        (policy, seed) for policy in ("best-fit", "random", "fgd") for seed in (42, 43)
    ]
    assert [summary.policy for summary in one.summary] == ["best-fit", "random", "fgd"]


def test_timed_results_say_where_arrivals_come_from() -> None:
    several = grid("best-fit", mode="timed")
    assert run_grid(several, 1).notes[0].startswith("Arrivals are resampled for each seed: ")
    own = msgspec.structs.replace(several, arrivals=(replayed(len(PODS), 4, 42),))
    assert run_grid(own, 1).notes[0] == "Arrivals are the trace's own."
    assert not any("rrivals" in note for note in run_grid(grid("best-fit"), 1).notes)


def test_policies_without_their_inputs_are_named_and_those_that_did_the_same() -> None:
    results = run_grid(grid("best-fit", "binpack", "load-aware", "spread", seeds=1), 1)
    assert [summary.lacks for summary in results.summary] == [[], [], ["metrics"], []]
    assert results.notes[:2] == [
        "* without metrics: load-aware (a trace has none; `weft experiment run` simulates them)",
        "identical results in every run: best-fit, binpack",
    ]


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_is_told_after_each_run(jobs: int) -> None:
    told: list[tuple[str, int, int]] = []
    run_grid(grid("best-fit", "spread"), jobs, lambda *what: told.append(what))
    assert sorted(told) == sorted(told, key=lambda what: (what[0], what[1]))
    assert [done for _, _, done in told] == [1, 2, 3, 4]


def test_an_error_in_another_process_arrives_here() -> None:
    with pytest.raises(
        PolicyError, match="policy broken, score_nodes: FailingError: in the middle"
    ):
        run_grid(grid("best-fit", "broken"), 2)


# --- the decisions file ----------


@pytest.mark.parametrize("mode", ["inflation", "timed"])
def test_a_recorded_run_replays_alike(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "decisions.jsonl"
    wanted = grid("best-fit", seeds=1, mode=mode, decisions=path)
    results = run_grid(wanted, 1)
    assert [path] == list(tmp_path.iterdir())
    verdict = replay(*read(path), built_in().create)
    assert verdict.identical
    assert verdict.decisions >= results.runs[0].pods


def test_a_run_that_fails_leaves_no_file_and_spoils_no_older_one(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    with pytest.raises(PolicyError):
        run_cell(grid("broken", seeds=1, decisions=path), first("broken"))
    assert list(tmp_path.iterdir()) == []
    path.write_text("older")
    with pytest.raises(PolicyError):
        run_cell(grid("broken", seeds=1, decisions=path), first("broken"))
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path: Path) -> None:
    def full(_: str) -> Policy:
        raise OSError(28, "No space left on device")

    path = tmp_path / "decisions.jsonl"
    wanted = msgspec.structs.replace(grid("full", seeds=1, decisions=path), make=full)
    with pytest.raises(BadInputError, match="cannot be written: No space left on device"):
        run_cell(wanted, first("full"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["missing/file", "file/below", "folder"])
def test_places_that_cannot_be_written_are_named(tmp_path: Path, where: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    path = tmp_path / where
    with pytest.raises(BadInputError) as caught:
        run_cell(grid("best-fit", seeds=1, decisions=path), first("best-fit"))
    assert str(caught.value).startswith(f"{path}: cannot be written: ")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["file", "folder"]


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(BadInputError, match="cannot be written: Is a directory"):
        run_cell(grid("best-fit", seeds=1, decisions=Path()), first("best-fit"))


@pytest.mark.parametrize("mode", ["inflation", "timed"])
def test_holdings_are_of_each_policys_first_run_and_add_up(mode: str) -> None:
    wanted = grid("best-fit", "spread", mode=mode, keeps_holdings=True)
    results, holdings = run_grid_with_holdings(wanted, 1)
    assert results == run_grid(wanted, 2)
    assert [(held.policy, held.seed) for held in holdings] == [("best-fit", 42), ("spread", 42)]
    for held in holdings:
        assert [held_node.name for held_node in held.nodes] == ["n0", "n1", "n2", "n3"]
        gpus = [gpu for held_node in held.nodes for gpu in held_node.gpus]
        shares = [holder for gpu in gpus for holder in gpu.holders]
        assert {holder.pod for holder in shares} <= {pod.name for pod in PODS}
        for gpu in gpus:
            assert sum(holder.milli for holder in gpu.holders) <= gpu.milli == 1000
        if mode == "inflation":
            (run,) = [r for r in results.runs if (r.policy, r.seed) == (held.policy, 42)]
            assert sum(holder.milli for holder in shares) == run.used_gpu_milli
            lost = sum(held_node.fragments_milli for held_node in held.nodes)
            assert lost / 80 == pytest.approx(run.gpu_fragmentation_percent, abs=0.02)
