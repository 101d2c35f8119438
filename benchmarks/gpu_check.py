"""`make gpu-check`: is there a GPU, does measuring work on it, and what comes out, in ten minutes.

    nvidia-smi ─▶ a Python with PyTorch ─▶ gpu_node (what the agent relies on)
                                         ─▶ gpu_measure (both ways of sharing) ─▶ a summary

Needs the standard library alone, so that it can say what is missing. Measuring needs a Python 3.11
with NumPy and one with PyTorch, mostly the same; what else Weft needs has a stand-in beside this
file. Nothing is installed but into build/gpu-venv, and only where no Python at hand has these. Ends
with 0 where everything worked, 1 where a step failed, 3 where there is no GPU, 130 where it was
interrupted: what was measured until then is kept. Results go to $OUT, or build/gpu-check.

GPU_PYTHON=… names the Python that has PyTorch; GPU_CHECK_S=… is the whole time (600 s);
CUDA_VISIBLE_DEVICES=… says which GPU.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NO_GPU, FAILED, INTERRUPTED = 3, 1, 130
RESERVE_S, LEAST_MEASURE_S, INSTALL_S, PATIENCE_S = 45.0, 90.0, 300.0, 25.0
NODE_S = 180.0
COLD_S = 150.0
"""For PyTorch to be read off a cold disk and to open the GPU."""
CUDA_13_DRIVER = 580
"""PyTorch from 2.10 on comes with CUDA 13, which older drivers do not run."""
HAS_WEFTS = "import sys, numpy; sys.exit(sys.version_info < (3, 11))"
SEES_GPU = """
import sys
assert sys.version_info >= (3, 10), "the workloads need Python 3.10"
import torch
side = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
assert float((side @ side)[0, 0]) == 64
"""
"""Some builds of PyTorch see a GPU that they have no code for: an answer of it is wanted."""
WORKLOADS = (
    "resnet-train",
    "mobilenet-train",
    "encoder-train",
    "decoder-infer-1",
    "decoder-infer-32",
    "dlrm-train",
    "lstm-train",
    "gemm-bf16",
    "elementwise",
    "tiny-kernels",
    "input-train",
    "resnet-infer-1",
)
"""One of each character: all of them would take an hour."""


class Plan(NamedTuple):
    """The plan of a run: Weft's Python, PyTorch's Python, where results go, when it must be
    over."""

    weft: str
    torch: str
    out: Path
    deadline_s: float


class StepError(Exception):
    """A step that did not work; the text is one line for people."""


def main(argv: Sequence[str]) -> int:
    """All steps; the exit code."""
    whole_s = 0.0
    with suppress(ValueError):
        whole_s = float(os.environ.get("GPU_CHECK_S") or "600")
    if not 0 < whole_s < float("inf"):
        say(f"GPU_CHECK_S={os.environ['GPU_CHECK_S']}: is no number of seconds")
        return FAILED
    deadline_s = time.monotonic() + whole_s
    out = Path(os.environ.get("OUT") or ROOT / "build" / "gpu-check")
    try:
        gpus = find_gpus()
    except StepError as error:
        say(f"no GPU found: {error}")
        return NO_GPU
    for line in gpus:
        say(line)
    try:
        torch = torch_python(deadline_s)
        plan = Plan(weft_python(torch, deadline_s), torch, out, deadline_s)
        say(f"measuring by {plan.weft}, PyTorch by {plan.torch}")
        try:
            node = check_node(plan)
            code = measure(plan, argv) or node
        except KeyboardInterrupt:
            code = INTERRUPTED
        summary = summarise(out)
        (out / "summary.txt").write_text(summary)
    except (StepError, OSError) as error:
        say(f"failed: {error}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    print(summary, end="")
    return code


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def say(text: str) -> None:
    """One line for people, on stderr."""
    print(f"gpu-check: {text}", file=sys.stderr, flush=True)


def find_gpus() -> list[str]:
    """The GPUs that nvidia-smi lists."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise StepError("there is no nvidia-smi; run this where an NVIDIA driver is installed")
    code, told = ended([program, "-L"], 30)
    found = [line for line in told.splitlines() if line.startswith("GPU ")]
    if code != 0 or not found:
        raise StepError(f"nvidia-smi -L ended with {code}: {told.strip()[-200:] or 'nothing'}")
    return found


def gpu() -> str:
    """The one to measure: the first that CUDA would use."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return first if first.isdecimal() or first.startswith("GPU-") else "0"


def weft_python(torch: str, deadline_s: float) -> str:
    """A Python that measuring runs in: the clone's, the one that runs this, PyTorch's, ours."""
    for python in dict.fromkeys((str(ROOT / ".venv/bin/python"), torch, *_pythons())):
        if ended([python, "-c", HAS_WEFTS], 60)[0] == 0:
            return python
    made = _install(["numpy"], deadline_s)
    if ended([made, "-c", HAS_WEFTS], 60)[0] != 0:
        raise StepError(f"{made} is no Python 3.11: say make gpu-check PYTHON=/path/to/python3.11")
    return made


def torch_python(deadline_s: float) -> str:
    """A Python whose PyTorch runs on the GPU; made where there is none."""
    named = os.environ.get("GPU_PYTHON", "")
    why = ""
    for python in [named] if named else dict.fromkeys(_pythons()):
        code, told = ended([python, "-c", SEES_GPU], COLD_S)
        if code == 0:
            return python
        if "No module named 'torch'" not in told and code != 127:
            why = f"{python}: {(told.strip().splitlines() or [f'exit code {code}'])[-1][:300]}"
            say(why)
    if named:
        raise StepError(f"GPU_PYTHON={named}: has no PyTorch that runs on the GPU")
    made = _install([torch_wanted(), "numpy"], deadline_s)
    code, told = ended([made, "-c", SEES_GPU], COLD_S)
    if code != 0:
        raise StepError(f"the PyTorch in {made} does not run on the GPU: {told.strip()[-300:]}")
    return made


def torch_wanted() -> str:
    """The newest PyTorch that the driver runs."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    code, told = ended(query, 30)
    major = told.strip().partition(".")[0]
    new = code != 0 or not major.isdecimal() or int(major) >= CUDA_13_DRIVER
    return "torch" if new else "torch<2.10"


def _pythons() -> Iterator[str]:
    """Those at hand, the likeliest first."""
    yield sys.executable
    for name in ("python3", "python", *(f"python3.{minor}" for minor in range(14, 9, -1))):
        if found := shutil.which(name):
            yield found
    for path in (ROOT / "build" / "gpu-venv" / "bin" / "python", Path("/opt/conda/bin/python")):
        if path.exists():
            yield str(path)


def _install(packages: Sequence[str], deadline_s: float) -> str:
    """These into build/gpu-venv, within the time that leaves some to measure; its Python."""
    folder = ROOT / "build" / "gpu-venv"
    left_s = min(INSTALL_S, deadline_s - time.monotonic() - LEAST_MEASURE_S - RESERVE_S)
    if left_s < 30:
        raise StepError(f"no time is left to install {packages[0]}: raise GPU_CHECK_S")
    say(f"installing {', '.join(packages)} into {folder}")
    python = str(folder / "bin" / "python")
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [python, "-m", "pip", "install", "--quiet", *packages],
    ):
        began = time.monotonic()
        code, told = ended(command, left_s)
        left_s -= time.monotonic() - began
        if code != 0:
            raise StepError(f"{' '.join(command[1:4])} ended with {code}: {told.strip()[-200:]}")
    return python


def check_node(plan: Plan) -> int:
    """`gpu_node` within its time, or the half of what is left; 0, or `FAILED` where it ended so."""
    left_s = min(NODE_S, (plan.deadline_s - time.monotonic() - RESERVE_S) / 2)
    command = [
        plan.weft,
        str(ROOT / "benchmarks" / "gpu_node.py"),
        str(plan.out),
        "--python",
        plan.torch,
        "--gpu",
        gpu(),
        "--budget-s",
        f"{max(left_s - 15, 1):.0f}",
    ]
    code, _ = ended(command, max(left_s, 5) + PATIENCE_S, shown=True)
    if code != 0:
        say(f"the agent's checks ended with {code}")
    return FAILED if code else 0


def measure(plan: Plan, argv: Sequence[str]) -> int:
    """`gpu_measure` within what is left of the time; 0, or `FAILED` where it ended so.

    Time-slicing comes first, and is kept where MPS cannot be had.
    """
    left_s = plan.deadline_s - time.monotonic() - RESERVE_S
    if left_s < LEAST_MEASURE_S:
        raise StepError(f"{left_s:.0f} s are left, too few to measure: raise GPU_CHECK_S")
    shares = ["--isolation", "time-slicing"]
    if shutil.which("nvidia-cuda-mps-control"):
        shares += ["--isolation", "mps"]
    else:
        say("no nvidia-cuda-mps-control: MPS is left out")
    command = [
        plan.weft,
        str(ROOT / "benchmarks" / "gpu_measure.py"),
        str(plan.out),
        "--python",
        plan.torch,
        "--gpu",
        gpu(),
        "--window-s",
        "1.5",
        "--warm-s",
        "0.7",
        "--budget-s",
        f"{left_s - 15:.0f}",
        *shares,
        *(word for name in WORKLOADS for word in ("--workload", name)),
        *argv,
    ]
    code, _ = ended(command, left_s + RESERVE_S / 2, shown=True)
    if code != 0:
        say(f"measuring ended with {code}")
    return FAILED if code else 0


def summarise(out: Path) -> str:
    """The findings in the dataset, in a few lines."""
    try:
        found = json.loads((out / "dataset.json").read_text())
    except (OSError, ValueError) as error:
        raise StepError(f"no dataset came out: {error}") from error
    lines = [f"{key}: {text}" for key, text in sorted(found.get("about", {}).items())]
    features = sorted({name for one in found.get("solo", []) for name in one.get("features", {})})
    lines.append(f"features: {', '.join(features) or 'none'}")
    for isolation in sorted({one["isolation"] for one in found.get("solo", [])}):
        solos = [one for one in found["solo"] if one["isolation"] == isolation]
        coruns = [one for one in found.get("corun", []) if one["isolation"] == isolation]
        speeds = sorted(one["speed"] for one in coruns)
        told = f"{isolation}: {len(solos)} alone, {len(coruns)} beside another"
        if speeds:
            told += (
                f"; speed {speeds[0]:.2f} to {speeds[-1]:.2f}, "
                f"median {speeds[len(speeds) // 2]:.2f}"
            )
        lines.append(told)
    for one in found.get("infeasible", []):
        lines.append(
            f"infeasible: {' + '.join(one['applications'])} ({one['isolation']}): "
            f"{one['failed']}: {one['reason']}"
        )
    lines += checked(out)
    if not found.get("solo"):
        raise StepError("nothing was measured:\n" + "\n".join(lines))
    return "\n".join(lines) + "\n"


def checked(out: Path) -> list[str]:
    """Results of the agent's checks, a line each."""
    try:
        found = json.loads((out / "node.json").read_text())
    except (OSError, ValueError):
        return ["the agent's checks: not run"]
    return [f"{one['check']}: {one['result']}: {one['text']}" for one in found]


def ended(command: Sequence[str], timeout_s: float, *, shown: bool = False) -> tuple[int, str]:
    """(exit code, output) of a command that is ended, with all it started, after `timeout_s`.

    Also where somebody interrupts: it is a process group of its own, which no Ctrl-C reaches.
    """
    try:
        process = subprocess.Popen(
            command,
            start_new_session=True,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=None if shown else subprocess.PIPE,
            stderr=None if shown else subprocess.STDOUT,
        )
    except OSError as error:
        return 127, str(error)
    try:
        told, _ = process.communicate(timeout=max(timeout_s, 0.1))
    except subprocess.TimeoutExpired:
        _end(process)
        return 124, f"not over in {timeout_s:.0f} s"
    except KeyboardInterrupt:
        _end(process)
        raise
    return process.returncode, told or ""


def _end(process: "subprocess.Popen[str]") -> None:
    """SIGTERM first: measuring then stops MPS and its workloads, and keeps what it has."""
    for sent, patience_s in ((signal.SIGTERM, PATIENCE_S), (signal.SIGKILL, 10.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=patience_s)
            return


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(main(sys.argv[1:]))
