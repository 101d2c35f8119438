"""Parts of tests of measuring: a fake GPU, the workloads on it, and a campaign's log."""

import sys
from collections.abc import Mapping
from pathlib import Path

from fakes.bench import FakeBench, FakeWorkload
from weft.lab.profiling.campaign import Campaign, CampaignProgress, CampaignSettings
from weft.lab.profiling.runlog import MeasuringBegan, RunLog, RunLogWriter, read
from weft.lab.workloads.catalog import Workload

WORLD = {
    "busy": FakeWorkload(rate_per_s=200, compute=0.9, memory=0.2),
    "idle": FakeWorkload(rate_per_s=1_000, compute=0.05, memory=0.05),
    "streams": FakeWorkload(rate_per_s=50, compute=0.2, memory=0.9),
    "half": FakeWorkload(rate_per_s=100, compute=0.5, memory=0.4),
}
QUICK = CampaignSettings(runs=3, window_s=2.0, warm_s=1.5)
PLAYED = """#!{python}
# A fake of a Python with PyTorch on a GPU: each workload does a thousand iterations a second.
import json, os, select, sys, time
if sys.argv[1] == "-c":
    sys.exit({sees!r} if "torch" in sys.argv[2] else "nothing is installed here")
open("{pids}", "a").write(f"{{os.getpid()}}\\n")
def say(event, began_s=None):
    now_s = time.monotonic()
    iterations = 0 if began_s is None else int(1000 * (now_s - began_s))
    print(json.dumps({{"event": event, "at_s": now_s, "iterations": iterations}}), flush=True)
    return now_s
say("loaded")
while line := sys.stdin.readline():
    if line != "go\\n":
        continue
    began_s = say("steady")
    while not select.select([0], [], [], 0.02)[0]:
        say("progress", began_s)
    say("paused")
"""


def played(folder: Path, sees: object = 0) -> Path:
    """A fake Python with PyTorch; who was started by it stands in `pids`. `sees` is how it ends
    when it is asked for the GPU."""
    program = folder / "played-python"
    program.write_text(PLAYED.format(python=sys.executable, sees=sees, pids=folder / "pids"))
    program.chmod(0o755)
    return program


def alive(pid: int) -> bool:
    """Tells whether it runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def workload(name: str) -> Workload:
    return Workload(name, "kernels", "compute", 1, "small", "nowhere:nothing", {}, {})


def measured(
    path: Path,
    world: Mapping[str, FakeWorkload] = WORLD,
    settings: CampaignSettings = QUICK,
    isolations: tuple[str, ...] = ("time-slicing",),
    bench: FakeBench | None = None,
) -> tuple[RunLog, bool, list[CampaignProgress]]:
    """Measure what the log lacks; the log, whether all was done, and what was told."""
    bench = bench or FakeBench(world)
    log, told = read(path), []
    writer = RunLogWriter(path)
    writer.write(MeasuringBegan(bench.card))
    workloads = [workload(name) for name in world]
    try:
        complete = Campaign(bench, workloads, writer, settings, told.append).run(isolations, log)
    finally:
        writer.close()
    assert not bench.residents
    return read(path), complete, told
