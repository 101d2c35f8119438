"""Pods that are moved in timed runs: what they lose, and what counts as their wait."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from weft.core.policies.packing import BestFit
from weft.lab.simulate.arrivals import replayed
from weft.lab.simulate.openb import pods_csv, read_pods
from weft.lab.simulate.results import PolicyRun
from weft.lab.simulate.scenario import Scenario, read_scenario
from weft.lab.simulate.timed import TimedPods, run_timed
from weft.model import BadInputError
from weft.model.queue_rules import MoveRules

MINUTE = 60_000_000_000
NODES = "sn,cpu_milli,memory_mib,gpu,model\na,9000,9000,2,T4\nb,9000,9000,1,T4\n"
COLUMNS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"
PODS = """
first,0,0,1,1000,0,50,0,
share,0,0,1,600,1,1001,1,{restart}
large,0,0,2,1000,100,1100,100,
"""
"""While the first pod holds node b the share is put on node a, where the large one would fit."""


def scenario(folder: Path, restart: str) -> Scenario:
    nodes, pods = folder / "nodes.csv", folder / "pods.csv"
    nodes.write_text(NODES)
    pods.write_text(f"{COLUMNS},restart_s{PODS.format(restart=restart)}")
    return read_scenario(nodes, pods, timed=True)


def played(world: Scenario, moves: MoveRules) -> tuple[PolicyRun, TimedPods]:
    world = replace(world, moves=moves)
    times: list[TimedPods] = []
    arrivals = replayed(len(world.pods), len(world.nodes), 1)
    ranked = replace(arrivals, node_rank=[0, 1])
    run = run_timed(world, BestFit(), ranked, timing=False, on_times=times.append)
    return run, times[0]


def test_a_moved_pod_runs_its_restart_again_and_the_large_one_starts(tmp_path: Path) -> None:
    world = scenario(tmp_path, "40")
    stays, without = played(world, MoveRules())
    assert not stays.moves
    run, times = played(world, MoveRules(MINUTE, 60))
    second = 1_000_000_000
    assert without.bound[2] == 1_001 * second
    # It waits a minute from 100 s, and the share goes 30 s later; it comes anew at once.
    assert times.bound[2] == 190 * second
    assert times.ended[1] == (1_001 + 40) * second
    assert run.moves
    assert (run.moves.moved, run.moves.lost_gpu_s) == (1, 24.0)
    several, others = run.sizes or ()
    assert (several.pods, several.mean_s) == (1, 90.0)
    assert (others.pods, others.mean_s) == (2, 0.0)  # it ran all the time but for an instant


def test_without_restart_cost_in_its_row_nobody_moves(tmp_path: Path) -> None:
    run, times = played(scenario(tmp_path, ""), MoveRules(MINUTE, 60))
    assert times.bound[2] == 1_001_000_000_000
    assert run.moves
    assert run.moves.moved == 0


def test_pod_lists_say_what_a_restart_costs(tmp_path: Path) -> None:
    world = scenario(tmp_path, "40")
    assert [pod.restart_s for pod in world.pods] == [None, 40, None]
    again = tmp_path / "again.csv"
    again.write_text(pods_csv(world.pods))
    assert [pod.restart_s for pod in read_pods(again)] == [None, 40, None]
    with pytest.raises(BadInputError, match="restart_s"):
        scenario(tmp_path, "-1")
