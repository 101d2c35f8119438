"""A container's program on a GPU, for `gpu_node`: run by a Python that has PyTorch.

    gpu_probe.py hold MIB       take so much, say so, and keep it until stdin closes
    gpu_probe.py rate SECONDS   multiply matrices for so long; says how many
    gpu_probe.py fault          read beyond an array, on the GPU

Each thing said is a line of JSON, {"said": …}: held, out-of-memory, rate, failed, survived.
"""

import json
import sys
import time
from typing import Any


def say(said: str, **more: Any) -> None:
    print(json.dumps({"said": said, **more}), flush=True)


def hold(mib: int) -> None:
    import torch

    try:
        kept = torch.zeros(mib << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError as error:
        say("out-of-memory", text=str(error)[:200])
        return
    say("held", mib=mib)
    sys.stdin.read()
    try:
        kept += 1
        torch.cuda.synchronize()
    except RuntimeError as error:
        say("failed", text=str(error)[:200])
        return
    say("survived")


def rate(seconds: float) -> None:
    import torch

    side = torch.ones(2048, 2048, device="cuda", dtype=torch.float16)
    for _ in range(5):
        side @ side
    torch.cuda.synchronize()
    began, done = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        for _ in range(10):
            side @ side
        torch.cuda.synchronize()
        done += 10
    say("rate", per_s=done / (time.monotonic() - began))


def fault() -> None:
    import torch

    try:
        torch.zeros(1, device="cuda")[torch.tensor([1 << 20], device="cuda")].sum().item()
    except RuntimeError as error:
        say("failed", text=str(error)[:200])
        return
    say("survived")


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold(int(sys.argv[2]))
    elif sys.argv[1] == "rate":
        rate(float(sys.argv[2]))
    else:
        fault()
