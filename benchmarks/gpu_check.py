"""`make gpu-check`: is there a GPU, does measuring work on it, and what comes out, in ten minutes.

    nvidia-smi ─▶ a Python with PyTorch ─▶ weft profile measure (both ways of sharing) ─▶ a summary

Needs the standard library alone, so that it can say what is missing. Nothing is installed but into
build/gpu-venv, and only where no Python at hand has PyTorch. Ends with 0 where everything worked,
1 where a step failed, 3 where there is no GPU. Results go to $OUT, or build/gpu-check.

GPU_PYTHON=… names the Python that has PyTorch; GPU_CHECK_S=… is the whole time (600 s).
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NO_GPU, FAILED = 3, 1
RESERVE_S, LEAST_MEASURE_S, INSTALL_S, PATIENCE_S = 45.0, 90.0, 300.0, 25.0
NEEDED = ("msgspec", "numpy", "rich", "typer", "pynvml")
"""What `weft profile measure` imports."""
WORKLOADS = (
    "resnet-train", "mobilenet-train", "encoder-train", "decoder-infer-1", "decoder-infer-32",
    "dlrm-train", "lstm-train", "gemm-bf16", "elementwise", "tiny-kernels", "input-train",
    "resnet-infer-1",
)  # fmt: skip
"""One of each character: all of them would take an hour."""


class Plan(NamedTuple):
    """What to run with: Weft's Python, PyTorch's Python, where results go, when it must be over."""

    weft: str
    torch: str
    out: Path
    deadline_s: float


class StepError(Exception):
    """A step that did not work; the text is one line for people."""


def main(argv: Sequence[str]) -> int:
    """All steps; the exit code."""
    deadline_s = time.monotonic() + float(os.environ.get("GPU_CHECK_S", "600"))
    out = Path(os.environ.get("OUT") or ROOT / "build" / "gpu-check")
    try:
        gpus = find_gpus()
    except StepError as error:
        say(f"no GPU found: {error}")
        return NO_GPU
    for line in gpus:
        say(line)
    try:
        plan = Plan(weft_python(deadline_s), torch_python(deadline_s), out, deadline_s)
        say(f"Weft by {plan.weft}, PyTorch by {plan.torch}")
        code = measure(plan, argv)
        summary = summarise(out)
    except StepError as error:
        say(f"failed: {error}")
        return FAILED
    (out / "summary.txt").write_text(summary)
    print(summary, end="")
    return code


def say(text: str) -> None:
    """One line for people, on stderr."""
    print(f"gpu-check: {text}", file=sys.stderr, flush=True)


def find_gpus() -> list[str]:
    """What nvidia-smi lists."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise StepError("there is no nvidia-smi; run this where an NVIDIA driver is installed")
    code, told = ended([program, "-L"], 30)
    found = [line for line in told.splitlines() if line.startswith("GPU ")]
    if code != 0 or not found:
        raise StepError(f"nvidia-smi -L ended with {code}: {told.strip()[-200:] or 'nothing'}")
    return found


def weft_python(deadline_s: float) -> str:
    """A Python that has what Weft's measuring imports: the clone's, the one that runs this, ours.
    """  # fmt: skip
    names = ", ".join(NEEDED)
    here = (str(ROOT / ".venv/bin/python"), sys.executable, shutil.which("python3") or "")
    for python in (*here, *_installed()):
        if _imports(python, names):
            return python
    return _install(NEEDED, deadline_s)


def torch_python(deadline_s: float) -> str:
    """A Python whose PyTorch sees the GPU; made where there is none."""
    named = os.environ.get("GPU_PYTHON", "")
    candidates = (
        [named] if named else [sys.executable, shutil.which("python3") or "", *_installed()]
    )
    for python in dict.fromkeys(one for one in candidates if one):
        if _sees_gpu(python):
            return python
    if named:
        raise StepError(f"GPU_PYTHON={named}: its PyTorch sees no GPU, or it has none")
    made = _install(["torch", "numpy"], deadline_s)
    if not _sees_gpu(made):
        raise StepError(f"the PyTorch in {made} sees no GPU: does it fit the driver?")
    return made


def _installed() -> list[str]:
    python = ROOT / "build" / "gpu-venv" / "bin" / "python"
    return [str(python)] if python.exists() else []


def _imports(python: str, modules: str) -> bool:
    if python == sys.executable:
        return all(importlib.util.find_spec(name.strip()) for name in modules.split(","))
    return (
        bool(python)
        and Path(python).exists()
        and ended([python, "-c", f"import {modules}"], 60)[0] == 0
    )


def _sees_gpu(python: str) -> bool:
    asks = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return ended([python, "-c", asks], 90)[0] == 0


def _install(packages: Sequence[str], deadline_s: float) -> str:
    """These into build/gpu-venv, within the time that leaves some to measure; its Python."""
    folder = ROOT / "build" / "gpu-venv"
    left_s = min(INSTALL_S, deadline_s - time.monotonic() - LEAST_MEASURE_S - RESERVE_S)
    if left_s < 30:
        raise StepError(f"no time is left to install {packages[0]}: raise GPU_CHECK_S")
    say(f"installing {', '.join(packages)} into {folder}")
    python = str(folder / "bin" / "python")
    names = ["nvidia-ml-py" if name == "pynvml" else name for name in packages]
    for command in ([sys.executable, "-m", "venv", str(folder)],
                    [python, "-m", "pip", "install", "--quiet", *names]):  # fmt: skip
        began = time.monotonic()
        code, told = ended(command, left_s)
        left_s -= time.monotonic() - began
        if code != 0:
            raise StepError(f"{' '.join(command[1:4])} ended with {code}: {told.strip()[-200:]}")
    return python


def measure(plan: Plan, argv: Sequence[str]) -> int:
    """`weft profile measure` within what is left of the time; 0, or `FAILED` where it ended so.

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
        plan.weft, "-m", "weft.cli.main", "profile", "measure", str(plan.out),
        "--python", plan.torch, "--window-s", "1.5", "--warm-s", "0.7",
        "--budget-s", f"{left_s - 15:.0f}", *shares,
        *(word for name in WORKLOADS for word in ("--workload", name)), *argv,
    ]  # fmt: skip
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    code, _ = ended(command, left_s + RESERVE_S / 2, {"PYTHONPATH": path}, shown=True)
    if code != 0:
        say(f"weft profile measure ended with {code}")
    return FAILED if code else 0


def summarise(out: Path) -> str:
    """What was found, from the dataset, in a few lines."""
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
            told += (f"; speed {speeds[0]:.2f} to {speeds[-1]:.2f}, "
                     f"median {speeds[len(speeds) // 2]:.2f}")  # fmt: skip
        lines.append(told)
    for one in found.get("infeasible", []):
        lines.append(f"infeasible: {' + '.join(one['applications'])} ({one['isolation']}): "
                     f"{one['failed']}: {one['reason']}")  # fmt: skip
    if not found.get("solo"):
        raise StepError("nothing was measured:\n" + "\n".join(lines))
    return "\n".join(lines) + "\n"


def ended(
    command: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None, *,
    shown: bool = False,
) -> tuple[int, str]:  # fmt: skip
    """(exit code, output) of a command that is ended, with all it started, after `timeout_s`."""
    try:
        process = subprocess.Popen(
            command, env={**os.environ, **(env or {})}, start_new_session=True, text=True,
            stdin=subprocess.DEVNULL, stdout=None if shown else subprocess.PIPE,
            stderr=None if shown else subprocess.STDOUT,
        )  # fmt: skip
    except OSError as error:
        return 127, str(error)
    try:
        told, _ = process.communicate(timeout=max(timeout_s, 0.1))
    except subprocess.TimeoutExpired:
        # SIGINT first: measuring then stops MPS and its workloads, and keeps what it has.
        for sent, patience_s in ((signal.SIGINT, PATIENCE_S), (signal.SIGKILL, 10.0)):
            os.killpg(process.pid, sent)
            try:
                process.communicate(timeout=patience_s)
                break
            except subprocess.TimeoutExpired:
                continue
        return 124, f"not over in {timeout_s:.0f} s"
    return process.returncode, told or ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
