"""Small results with numbers that tests can reckon by hand."""

from collections.abc import Mapping, Sequence

from weft.lab.experiment.statistics.ranking import notes_on, summarise
from weft.lab.simulate.results import (
    CompletionTimes,
    PolicyRun,
    SimulationResults,
    Timeline,
    WaitTimes,
)

SEEDS = (42, 43, 44, 45, 46)
CEILINGS: Mapping[str, Sequence[float]] = {
    "fgd": (95.0, 95.4, 95.2, 95.1, 95.3),
    "best-fit": (93.0, 93.2, 93.1, 93.05, 93.15),
    "random": (86.0, 87.0, 86.5, 86.2, 86.8),
}


def run(policy: str, seed: int, ceiling: float, **changes: object) -> PolicyRun:
    """A run that follows demand up to `ceiling` percent and stays there until 130."""
    failed = round((130 - ceiling) * 10)
    values: dict[str, object] = {
        "policy": policy,
        "seed": seed,
        "arrived_percent": 130.0,
        "gpu_allocated_percent": ceiling,
        "gpu_held_percent": ceiling,
        "gpu_fragmentation_percent": round(100 - ceiling - 0.25, 2),
        "fragmentation_of_idle_percent": 90.0,
        "used_gpu_milli": round(ceiling * 8000),
        "failed_pods": failed,
        "pods": 1300,
        "curve": {str(x): min(float(x), ceiling) for x in range(0, 131)},
        "fragmentation_curve": {str(x): 14 - x / 130 * (ceiling - 86) for x in range(0, 131)},
        "by_model": {"G2": ceiling, "T4": ceiling - 10, "A10": 50.0},
        "unscheduled": {"too few idle GPUs": failed - 40, "insufficient cpu": 40},
        "cpu_s": 0.5,
        "wall_s": 0.6,
    }
    return PolicyRun(**(values | changes))  # type: ignore[arg-type]


def results(
    ceilings: Mapping[str, Sequence[float]] = CEILINGS, **changes: object
) -> SimulationResults:
    """One run a policy and seed."""
    runs = [
        run(policy, seed, ceiling, **changes)
        for policy, values in ceilings.items()
        for seed, ceiling in zip(range(42, 42 + len(values)), values, strict=True)
    ]
    summary = summarise(runs)
    return SimulationResults(runs, summary, notes_on(runs, summary))


def timed_run(policy: str, seed: int, wait_s: float, never_started: int = 0) -> PolicyRun:
    """A run that makes pods wait; everybody who started has left at its end."""
    return run(
        policy,
        seed,
        80.0,
        waits=WaitTimes(
            started=100,
            never_started=never_started,
            mean_s=wait_s,
            p50_s=1.0,
            p90_s=30.0,
            p95_s=150.0,
            p99_s=200.0,
            max_s=300.0,
            mean_held_percent=61.5,
            mean_allocated_percent=51.5,
            end_s=9000.0,
        ),
        completion=CompletionTimes(100, wait_s + 30, 20.0, 100.0, 250.0),
        timeline=Timeline(
            step_s=16.0,
            steps_to_last_start=300,
            allocated_percent=[50.0 + step % 3 for step in range(300)],
            held_percent=[60.0 + step % 3 for step in range(300)],
            waiting_pods=[float(step % 5) for step in range(300)],
            fragmented_percent=[5.0 + seed % 2] * 300,
        ),
        curve={},
        fragmentation_curve={},
        failed_pods=never_started,
        gpu_allocated_percent=0.0,
        gpu_held_percent=0.0,
        by_model={"G2": 0.0},
        unscheduled={},
        arrived_percent=4000.0,
    )


def timed() -> SimulationResults:
    """Two policies that make pods wait."""
    runs = [
        timed_run(policy, seed, mean + seed - 42)
        for policy, mean in (("slow", 20.0), ("quick", 10.0))
        for seed in SEEDS
    ]
    summary = summarise(runs)
    return SimulationResults(runs, summary, notes_on(runs, summary))
