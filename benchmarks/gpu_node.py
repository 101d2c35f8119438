"""Tries on the GPU at hand what the node's agent relies on: discovery, MPS, use by process.

    gpu_node.py FOLDER --python PYTHON_WITH_PYTORCH --gpu 0 --budget-s 120

Writes FOLDER/node.json and says a line for each check: `held`, `FAILED`, `seen` where there is
nothing to hold but something to know, and `not run`, with the reason. Ends with 1 where one failed.
Its needs are `gpu_measure`'s.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]
if importlib.util.find_spec("msgspec") is None:
    import bare_msgspec

    bare_msgspec.stand_in()
if importlib.util.find_spec("pynvml") is None:
    import bare_pynvml

    bare_pynvml.stand_in()

from weft.node.devices.mps import PIPES, PROGRAM, mps, no_mps  # noqa: E402
from weft.node.devices.nvml import NvmlReader  # noqa: E402
from weft.node.devices.nvml_library import model_of  # noqa: E402
from weft.node.devices.reader import DeviceError, DeviceReader  # noqa: E402 - behind stand-ins

PROBE = str(Path(__file__).resolve().parent / "gpu_probe.py")
HELD, FAILED, SEEN, NOT_RUN = "held", "FAILED", "seen", "not run"
SHARE_MIB, PERCENT, RATE_S, START_S = 2_000, 25, 3.0, 60.0
QUERY = "index,uuid,name,memory.total,memory.reserved,pci.bus_id"
LIMIT, THREADS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
NOBODY = 65_534


class Outcome(NamedTuple):
    """The outcome of a check."""

    check: str
    result: str
    text: str


class CannotRunError(Exception):
    """A check that this machine does not let be made; the text says why."""


class Probe:
    """A program on the GPU; `ask` is the next thing that it says."""

    def __init__(self, python: str, words: Sequence[str], env: Mapping[str, str], uid: int = -1):
        self._process = subprocess.Popen(
            [python, PROBE, *words],
            env={**os.environ, **env},
            user=None if uid < 0 else uid,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._process.pid

    def ask(self, timeout_s: float = START_S) -> dict[str, Any]:
        """Its answer; {} where it ends or says nothing within the time."""
        assert self._process.stdout is not None
        import select

        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        line = self._process.stdout.readline() if ready else ""
        with suppress(ValueError):
            told = json.loads(line)
            if isinstance(told, dict):
                return told
        return {}

    def release(self) -> None:
        """Let go of what it holds."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self.release()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Bench:
    """The GPU, the Python with PyTorch, and the programs that were started."""

    def __init__(self, python: str, gpu: str, reader: DeviceReader) -> None:
        self.python, self.gpu, self.reader = python, gpu, reader
        self._running: list[Probe] = []

    def start(self, env: Mapping[str, str], *words: object, uid: int = -1) -> Probe:
        told = {"CUDA_VISIBLE_DEVICES": self.gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **env}
        self._running.append(Probe(self.python, [str(word) for word in words], told, uid))
        return self._running[-1]

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Nothing that was started within is left."""
        try:
            yield
        finally:
            while self._running:
                self._running.pop().end()


def discovery(bench: Bench) -> Outcome:
    """Index, UUID, model, usable memory and bus of each card are nvidia-smi's."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise CannotRunError("there is no nvidia-smi")
    told = subprocess.run(
        [program, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"],
        text=True,
        capture_output=True,
        check=False,
    )
    if told.returncode != 0:
        raise CannotRunError(
            f"nvidia-smi ended with {told.returncode}: {told.stdout.strip()[-200:]}"
        )
    found = {d.gpu.index: d for d in bench.reader.devices() if d.gpu.parent is None}
    lines = [
        [part.strip() for part in line.split(",")] for line in told.stdout.splitlines() if line
    ]
    wrong = []
    for index, uuid, name, total, reserved, bus in lines:
        device = found.pop(int(index), None)
        if device is None:
            wrong.append(f"GPU {index} was not found")
            continue
        usable = float(total) - float(reserved)
        ours = (device.gpu.uuid, device.gpu.model, device.pci_bus_id.lower())
        theirs = (uuid, model_of(name), bus.lower())
        if ours != theirs or abs(device.gpu.memory_mib - usable) > 1:
            wrong.append(f"GPU {index}: {theirs}, {usable:.0f} MiB, found {device}")
    wrong += [f"GPU {index} is nvidia-smi's not" for index in found]
    text = "; ".join(wrong) or f"{len(lines)} GPUs as nvidia-smi says"
    return Outcome("discovery", FAILED if wrong else HELD, text)


def accounting(bench: Bench) -> Outcome:
    """A program's memory is told of it, and of nobody else."""
    with no_mps() as env:
        probe = bench.start(env, "hold", 1_000)
        if probe.ask().get("said") != "held":
            raise CannotRunError("a program could not take 1,000 MiB")
        processes = bench.reader.processes()
    mine = [process.memory_mib for process in processes if process.pid == probe.pid]
    if not mine:
        pids = sorted({process.pid for process in processes})
        raise CannotRunError(f"NVML tells other process ids ({pids}): a PID namespace of our own?")
    right = 1_000 <= mine[0] <= 3_000
    return Outcome("use by process", HELD if right else FAILED, f"1,000 MiB held, {mine[0]} told")


def share_of_memory(bench: Bench, env: Mapping[str, str]) -> Outcome:
    """Below the share an allocation succeeds, above it fails."""
    limited = {**env, LIMIT: f"0={SHARE_MIB}M"}
    said = [
        bench.start(limited, "hold", mib).ask().get("said", "nothing")
        for mib in (SHARE_MIB // 2, SHARE_MIB + SHARE_MIB // 2)
    ]
    right = said == ["held", "out-of-memory"]
    return Outcome("MPS memory", HELD if right else FAILED, f"below: {said[0]}, above: {said[1]}")


def share_of_threads(bench: Bench, env: Mapping[str, str]) -> Outcome:
    """A percentage changes how much gets done."""
    rates = []
    for percent in (100, PERCENT):
        told = bench.start({**env, THREADS: str(percent)}, "rate", RATE_S).ask(START_S + RATE_S)
        if told.get("said") != "rate":
            raise CannotRunError(f"a program with {percent} % did nothing")
        rates.append(float(told["per_s"]))
    part = rates[1] / rates[0]
    right = part < 0.75
    text = f"{PERCENT} % of the threads do {part:.2f} of all of them"
    return Outcome("MPS percentage", HELD if right else FAILED, text)


def two_users(bench: Bench, env: Mapping[str, str]) -> Outcome:
    """A second user's program is served while the first's runs, each with its own limit."""
    if os.getuid() != 0:
        raise CannotRunError("only root can run programs of another user")
    first = bench.start(env, "hold", 100)
    if first.ask().get("said") != "held":
        raise CannotRunError("a program could not take 100 MiB")
    for folder in (Path(env[PIPES]), Path(env[PIPES]).parent):
        folder.chmod(0o755)
    # Whether it goes by MPS shows in its limit, which nothing else would heed.
    # CUDA's context needs a third of it, else the program ends before it says anything.
    limited = {**env, LIMIT: f"0={SHARE_MIB}M"}
    other = bench.start(limited, "hold", SHARE_MIB + SHARE_MIB // 2, uid=NOBODY)
    said = other.ask().get("said", "nothing")
    served = {"out-of-memory": "is served by MPS", "held": "passes MPS by"}
    text = f"the second user's program {served.get(said, f'said {said}')}"
    return Outcome("MPS, two users", HELD if said == "out-of-memory" else FAILED, text)


def fault(bench: Bench, env: Mapping[str, str]) -> Outcome:
    """Tries what becomes of a program while another one's kernel fails."""
    bystander = bench.start(env, "hold", 100)
    if bystander.ask().get("said") != "held":
        raise CannotRunError("a program could not take 100 MiB")
    failed = bench.start(env, "fault").ask()
    if failed.get("said") != "failed":
        raise CannotRunError("the program that was to fail did not")
    bystander.release()
    said = bystander.ask().get("said", "is gone")
    return Outcome("MPS, a faulting client", SEEN, f"the program beside it: {said}")


Alone = Callable[[Bench], Outcome]
WithMps = Callable[[Bench, Mapping[str, str]], Outcome]
ALONE: Mapping[str, Alone] = {"discovery": discovery, "use by process": accounting}
WITH_MPS: Mapping[str, WithMps] = {
    "MPS memory": share_of_memory,
    "MPS percentage": share_of_threads,
    "MPS, two users": two_users,
    "MPS, a faulting client": fault,  # the last one: it may take the server with it
}


def checks(bench: Bench, deadline_s: float) -> Iterator[Outcome]:
    """Every check, as it ends; those for which no time is left are not run."""

    def tried(name: str, check: Callable[[], Outcome]) -> Outcome:
        if time.monotonic() > deadline_s:
            return Outcome(name, NOT_RUN, "no time is left")
        try:
            with bench.cleared():
                return check()
        except (CannotRunError, DeviceError, OSError) as error:
            return Outcome(name, NOT_RUN, str(error))

    for name, alone in ALONE.items():
        yield tried(name, lambda alone=alone: alone(bench))  # type: ignore[misc]
    if shutil.which(PROGRAM) is None:
        yield from (Outcome(name, NOT_RUN, f"there is no {PROGRAM}") for name in WITH_MPS)
        return
    for name, check in WITH_MPS.items():  # a daemon each: none inherits another's faults

        def with_daemon(check: WithMps = check) -> Outcome:
            with mps(bench.gpu, multi_user=True) as env, bench.cleared():
                return check(bench, env)

        yield tried(name, with_daemon)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--budget-s", type=float, default=120.0)
    told = parser.parse_args()
    try:
        reader = NvmlReader()
        devices = reader.devices()
    except DeviceError as error:
        print(f"gpu-check: the agent's checks are not run: {error}", file=sys.stderr)
        return 0
    # Behind an MPS daemon that serves one GPU an index is another one's: its UUID stays.
    uuids = {str(d.gpu.index): d.gpu.uuid for d in devices if d.gpu.parent is None}
    bench = Bench(told.python, uuids.get(told.gpu, told.gpu), reader)
    outcomes = []
    try:
        for outcome in checks(bench, time.monotonic() + told.budget_s):
            outcomes.append(outcome)
            print(f"gpu-check: {outcome.check}: {outcome.result}: {outcome.text}", file=sys.stderr)
    finally:
        reader.close()
        told.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps([outcome._asdict() for outcome in outcomes], indent=1)
        (told.folder / "node.json").write_text(text + "\n")
    return int(any(outcome.result == FAILED for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
