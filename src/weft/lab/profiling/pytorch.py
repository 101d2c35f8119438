"""Checks before measuring that a Python has a PyTorch that can run workloads."""

import subprocess

from weft.lab.profiling.gpu_bench import BenchError
from weft.lab.profiling.machine import MachineOptions

_IMPORTS = "import torch"
_SEES_GPU = (
    "import sys, torch; sys.exit(None if torch.cuda.is_available() else 'torch sees no CUDA GPU')"
)
_COLD_S = 300.0
"""Timeout in seconds; importing PyTorch from a cold disk takes a minute."""
_NO_MODULE = "No module named 'torch'"


def check_pytorch(how: MachineOptions) -> None:
    """Raise `BenchError` if workloads cannot run there, so that none is recorded as infeasible for
    it."""
    asked = _SEES_GPU if how.device == "cuda" else _IMPORTS
    try:
        ended = subprocess.run(
            [how.python, "-c", asked], capture_output=True, text=True, timeout=_COLD_S, check=False
        )
    except OSError as error:
        raise BenchError(f"{how.python} does not start: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{how.python}: importing torch takes over {_COLD_S:.0f} s") from error
    if ended.returncode == 0:
        return
    lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
    if _NO_MODULE in ended.stderr:
        lines = ["has no PyTorch"]
    ways = f"{how.python} -m pip install torch, or name a Python that has it with --python"
    raise BenchError(f"{how.python}: {lines[-1][:200]}; {ways}")
