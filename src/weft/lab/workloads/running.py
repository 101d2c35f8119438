"""Runs one workload and reports its progress on stdout, one JSON object per line.

    loaded ─▶ steady ─▶ progress … ─▶ paused ─▶ steady …  ─▶ ended      or failed, at any time

Times are of CLOCK_MONOTONIC, which all processes of a machine share, so that one measuring window
can cover several workloads. Iterations are reported after the device has finished them, and count
from the end of the warm-up. With orders on stdin the workload runs and pauses on request, keeping
its memory, and ends when stdin is closed: it never outlives its parent."""

import json
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO

from weft.lab.workloads.catalog import Step, Workload

CHUNK_S = 0.05
"""Seconds between synchronisations with the device: rare enough to cost nothing."""
LEAST_WARM_ITERATIONS = 3
NO_MEMORY = ("out of memory", "alloc_failed", "can't allocate memory")
"""Texts in errors of PyTorch, of cuBLAS and cuDNN, and of a CPU's allocator if memory ran out."""
EXIT_OUT_OF_MEMORY, EXIT_FAILED = 3, 4
GO, PAUSE, END = "go", "pause", "end"

Say = Callable[..., None]


class RunOptions(NamedTuple):
    """The device, the seconds of steady running and of warm-up, and the choice of tiny sizes."""

    device: str = "cuda"
    seconds: float = 10.0
    warm_seconds: float = 2.0
    tiny: bool = False


class RunOrders:
    """Orders from a file descriptor, one word per line; without a descriptor: run once, then
    end."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor
        self._words = [] if descriptor is not None else [GO, END]
        self._text = b""

    def wait(self) -> str:
        """Wait for the next order and return it."""
        while not self._words:
            self._read()
        return self._words.pop(0)

    def waiting(self) -> bool:
        """Return True if an order has arrived."""
        if self._descriptor is None:
            return False
        if select.select([self._descriptor], [], [], 0)[0]:
            self._read()
        return bool(self._words)

    def _read(self) -> None:
        assert self._descriptor is not None
        read = os.read(self._descriptor, 4096)
        *lines, self._text = (self._text + read).split(b"\n")
        self._words += [line.decode() for line in lines]
        if not read:
            self._words.append(END)


def run(workload: Workload, running: RunOptions, out: TextIO, orders: RunOrders) -> int:
    """Load the workload, then follow orders; return the exit code."""

    def say(event: str, **more: Any) -> None:
        line = {"event": event, "at_s": time.monotonic(), **more}
        out.write(json.dumps(line, separators=(",", ":")) + "\n")
        out.flush()

    try:
        import torch

        from weft.lab.workloads.steps import DevicePlace

        place = DevicePlace(running.device)
        step = workload.make(place, running.tiny)
        step()
        place.wait()
        say("loaded", workload=workload.name, pid=os.getpid(), torch=str(torch.__version__))
        while (order := orders.wait()) != END:
            if order == GO:
                iterations = _go(step, place, running, say, orders)
                say("paused", iterations=iterations, peak_mib=place.peak_mib())
        say("ended", peak_mib=place.peak_mib())
    except Exception as error:  # any PyTorch error ends this workload, and is reported
        memory = ran_out_of_memory(error)
        reason = "out-of-memory" if memory else "failed"
        say("failed", reason=reason, text=f"{type(error).__name__}: {error}"[:500])
        return EXIT_OUT_OF_MEMORY if memory else EXIT_FAILED
    return 0


def ran_out_of_memory(error: Exception) -> bool:
    """Return True if PyTorch, a CUDA library or the CPU's allocator ran out of memory."""
    text = str(error).lower()
    return any(words in text for words in NO_MEMORY) or isinstance(error, MemoryError)


def _go(step: Step, place: Any, running: RunOptions, say: Say, orders: RunOrders) -> int:
    """Warm up, then run until the time is over or an order arrives.

    Return the number of iterations after the warm-up."""
    began, iterations, chunk = time.monotonic(), 0, 1
    steady_s: float | None = None
    while True:
        at = time.monotonic()
        for _ in range(chunk):
            step()
        place.wait()
        now = time.monotonic()
        iterations += chunk
        chunk = max(1, min(2 * chunk, round(chunk * CHUNK_S / max(now - at, 1e-9))))
        if steady_s is not None:
            say("progress", iterations=iterations)
        elif iterations >= LEAST_WARM_ITERATIONS and now - began >= running.warm_seconds:
            steady_s, iterations = now, 0
            say("steady", iterations=0)
        over = steady_s is not None and now - steady_s >= running.seconds
        if over or orders.waiting():
            return iterations if steady_s is not None else 0


def standard_output() -> TextIO:
    """Return a stream to stdout for progress lines, and send all other prints to stderr from now
    on."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return output
