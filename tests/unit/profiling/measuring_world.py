"""What tests of measuring share: a fake GPU, the workloads on it, and a campaign's log."""

from collections.abc import Mapping
from pathlib import Path

from weft.profiling.campaign import Campaign, Settings, Told
from weft.profiling.runlog import Begin, Log, Writer, read
from weft.testing.bench import FakeBench, Played
from weft.workloads.catalog import Workload

WORLD = {
    "busy": Played(rate_per_s=200, compute=0.9, memory=0.2),
    "idle": Played(rate_per_s=1_000, compute=0.05, memory=0.05),
    "streams": Played(rate_per_s=50, compute=0.2, memory=0.9),
    "half": Played(rate_per_s=100, compute=0.5, memory=0.4),
}
QUICK = Settings(runs=3, window_s=2.0, warm_s=1.5)


def workload(name: str) -> Workload:
    return Workload(name, "kernels", "compute", 1, "small", "nowhere:nothing", {}, {})


def measured(
    path: Path,
    world: Mapping[str, Played] = WORLD,
    settings: Settings = QUICK,
    isolations: tuple[str, ...] = ("time-slicing",),
    bench: FakeBench | None = None,
) -> tuple[Log, bool, list[Told]]:
    """Measure what the log lacks; the log, whether all was done, and what was told."""
    bench = bench or FakeBench(world)
    log, told = read(path), []
    writer = Writer(path)
    writer.write(Begin(bench.card))
    workloads = [workload(name) for name in world]
    try:
        complete = Campaign(bench, workloads, writer, settings, told.append).run(isolations, log)
    finally:
        writer.close()
    assert not bench.residents
    return read(path), complete, told
