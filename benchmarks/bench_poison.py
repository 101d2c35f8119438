"""Pods that are made to take long: the worst decision, by policy, each in a process of its own.

A case that takes longer than --limit seconds is ended there and shows so. Times are CPU times of
the process, so that waiting for a processor is not in them; what a live loop is blocked for is the
longest single `Engine.handle`. Writes build/bench/poison.json.

    python benchmarks/bench_poison.py [--limit 30] [--case NAME] [--policy NAME]
"""

import argparse
import contextlib
import gc
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from weft.cluster.state.pod_reader import read
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import Command, Engine, Event, PodAdded, PodGone, PodSeenBound, Tick, Wake
from weft.core.engine.assessment import TURN_LOOKS
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod
from weft.model import BadInputError, GpuMemoryRequest, GpuRequest, Node
from weft.testing import node, placement, pod, shape

POLICIES = ("auto", "fgd", "elastic-binpack", "binpack", "interference")
SECOND = 1_000_000_000


class Worst:
    """The longest `handle`, CPU seconds; wakes for now are followed at once, as a host does."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.worst_s, self.total_s = engine, 0.0, 0.0

    def __call__(self, event: Event, now_ns: int) -> None:
        commands = self._timed(event, now_ns)
        while any(isinstance(c, Wake) and c.at_ns <= now_ns for c in commands):
            commands = self._timed(Tick(), now_ns)

    def _timed(self, event: Event, now_ns: int) -> list[Command]:
        began = time.process_time()
        commands = self.engine.handle(event, now_ns)
        took = time.process_time() - began
        self.worst_s, self.total_s = max(self.worst_s, took), self.total_s + took
        return commands


def each_mib(count: int, least: int = 1_000) -> list[GpuRequest]:
    return [GpuRequest(memory=GpuMemoryRequest("mib", least + number)) for number in range(count)]


def partly(name: str, dice: Random, gpus: int = 8) -> Iterator[Event]:
    """Pods on the node: about half of each GPU, all different."""
    for gpu in range(gpus):
        yield PodSeenBound(
            placement(
                f"{name}-{gpu}",
                name,
                gpu,
                memory_mib=dice.randint(2_000, 12_000),
                milli=dice.choice([0, 100, 300]),
            )
        )


def slightly_different(worst: Worst, world: Random) -> None:
    worst(PodAdded(pod("p", gpu_requests=each_mib(17))), 1)


def many_instances(count: int) -> "Callable[[Worst, Random], None]":
    def play(worst: Worst, world: Random) -> None:
        worst(PodAdded(pod("p", gpus=count, memory_mib=1)), 1)

    return play


def partly_used(worst: Worst, world: Random) -> None:
    for event in partly("n0", world):
        worst(event, 0)
    worst(PodAdded(pod("p", gpu_requests=each_mib(12, 3_000))), 1)


def ordinary_elastic(worst: Worst, world: Random) -> None:
    for number in range(100):
        for event in partly(f"n{number}", world):
            worst(event, 0)
    for number in range(20):
        gpu_requests = [
            GpuRequest(memory=GpuMemoryRequest("mib", world.randint(500, 4_000)), milli=100)
            for _ in range(4)
        ]
        worst(PodAdded(pod(f"p{number}", gpu_requests=gpu_requests)), 1)


def most_containers(worst: Worst, world: Random) -> None:
    """As many as may ask, on partly used nodes."""
    for number in range(20):
        for event in partly(f"n{number}", world):
            worst(event, 0)
    worst(PodAdded(pod("p", gpu_requests=each_mib(256, 10))), 1)


def hopeless(worst: Worst, world: Random) -> None:
    """5,000 unlike pods that fit nowhere, and room freed on one of 1,000 nodes, five times."""
    for number in range(1_000):
        for gpu in range(8):
            odd = gpu % 2
            worst(
                PodSeenBound(
                    placement(
                        f"h{number}-{gpu}",
                        f"n{number}",
                        gpu,
                        memory_mib=16_000 if odd else 1_000,
                        milli=100 if odd else 900,
                    )
                ),
                0,
            )
    for number in range(5):
        worst(PodSeenBound(placement(f"x{number}", f"n{number}", 0, memory_mib=5)), 0)
    for number in range(5_000):
        gpu_requests = [GpuRequest(memory=GpuMemoryRequest("mib", 7_000 + number), milli=310)]
        asks = shape(
            gpu_requests=gpu_requests if number % 10 else gpu_requests + each_mib(1, 15_000)
        )
        worst(PodAdded(pod(f"p{number}", asks=asks)), SECOND)
    gc.freeze()  # as the scheduler does
    worst.worst_s = 0.0
    for number in range(5):
        worst(PodGone(f"x{number}"), (number + 1) * 60 * SECOND)


CASES: dict[str, tuple[list[Node], Callable[[Worst, Random], Any]]] = {
    "17 containers, one idle node of 8": ([node("n0", gpus=8)], slightly_different),
    "57 GPUs, 8 cards x 7 MIG": ([node("n0", gpus=8, mig=7)], many_instances(57)),
    "56 GPUs, 8 cards x 7 MIG": ([node("n0", gpus=8, mig=7)], many_instances(56)),
    "29 GPUs, 4 cards x 7 MIG": ([node("n0", gpus=4, mig=7)], many_instances(29)),
    "9 GPUs, 8 cards x 7 MIG": ([node("n0", gpus=8, mig=7)], many_instances(9)),
    "12 containers, one partly used node": ([node("n0", gpus=8)], partly_used),
    "4 containers, 100 partly used nodes": (
        [node(f"n{i}", gpus=8) for i in range(100)],
        ordinary_elastic,
    ),
    "256 containers, 20 partly used nodes": (
        [node(f"n{i}", gpus=8) for i in range(20)],
        most_containers,
    ),
    "5,000 hopeless pods, 1,000 nodes": ([node(f"n{i}", gpus=8) for i in range(1_000)], hopeless),
}
READING = "5,000 containers, read"


def reading() -> float:
    """The slowest of three pods of 5,000 containers to be read or refused."""
    worst_s = 0.0
    for name in ("elasticgpu.io/gpu-memory", "cpu", "example.com/r{}"):
        containers = [
            {"name": f"c{i}", "resources": {"limits": {name.format(i): f"{100 + i}"}}}
            for i in range(5_000)
        ]
        told = {"metadata": {"name": "p"}, "spec": {"containers": containers}}
        made = msgspec.convert(told, Pod)
        began = time.process_time()
        with contextlib.suppress(BadInputError):
            read(made, DialectSettings(), VolumeView())
        worst_s = max(worst_s, time.process_time() - began)
    return worst_s


def play(
    case: str, policy: str, answer: "multiprocessing.SimpleQueue[tuple[float, float]]"
) -> None:
    """In a process of its own."""
    if case == READING:
        answer.put((reading(), 0.0))
        return
    nodes, work = CASES[case]
    profile = Profile("weft", [built_in().create(policy)])
    worst = Worst(Engine([profile], nodes, turn_looks=TURN_LOOKS))
    work(worst, Random(1))
    answer.put((worst.worst_s, worst.total_s))


def measured(case: str, policy: str, limit_s: float) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    answer = context.SimpleQueue()
    process = context.Process(target=play, args=(case, policy, answer))
    process.start()
    process.join(limit_s)
    row: dict[str, Any] = {"case": case, "policy": policy, "limit_s": limit_s}
    if process.is_alive():
        process.kill()
        process.join()
        return row | {"over": True}
    if answer.empty():
        return row | {"failed": process.exitcode}
    worst_s, total_s = answer.get()
    return row | {"worst_ms": round(worst_s * 1e3, 2), "total_s": round(total_s, 3)}


def told(row: dict[str, Any]) -> str:
    if row.get("over"):
        return f"> {row['limit_s']:g} s in all"
    return f"{row['worst_ms']:.1f} ms" if "worst_ms" in row else f"failed ({row['failed']})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--case", choices=[*CASES, READING])
    parser.add_argument("--policy", choices=POLICIES)
    options = parser.parse_args()
    rows = []
    for case in [options.case] if options.case else [*CASES, READING]:
        policies = [options.policy] if options.policy else POLICIES
        for policy in policies if case != READING else policies[:1]:
            row = measured(case, policy, options.limit)
            rows.append(row)
            print(f"{case:40} {policy if case != READING else '':16} {told(row)}", flush=True)
    out = Path("build/bench")
    out.mkdir(parents=True, exist_ok=True)
    (out / "poison.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
