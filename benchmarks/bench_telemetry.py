"""Cost of one look at a large cluster: answers to a new snapshot, on one core.

10,000 GPUs × 10 metrics, windows of 5 minutes at 15 s (20 samples). Two looks are timed in CPU
seconds: a usual tick, whose answers hold the last 3 samples of each series, and the first look,
whose answers hold all 20. Both decode the server's JSON, join every series to its GPU, fill the
window and compute every column and forecast. Beside it the naive way, one series after the other:
dicts from json.loads, labels looked at each time, statistics in loops, timed on a part of the
series; its means must equal ours. Writes build/bench/telemetry.json.

    python benchmarks/bench_telemetry.py [--gpus 10000] [--ticks 5]
"""

import argparse
import json
import resource
import statistics as numbers
import time
from pathlib import Path

import numpy as np

from weft.core.framework.signals import SignalsView
from weft.model import Gpu, Node
from weft.model.metric import Metric
from weft.telemetry.feed.doubts import GpuPods
from weft.telemetry.feed.feed import SnapshotBuilder, SnapshotSettings, SnapshotTime
from weft.telemetry.feed.window import MetricWindow
from weft.telemetry.meaning.answers import decode
from weft.telemetry.meaning.join import Devices, SeriesJoiner
from weft.telemetry.meaning.metric_names import names_of

ROOT = Path(__file__).resolve().parents[1]
METRICS = (
    Metric.MEMORY_USED_MIB,
    Metric.MEMORY_FREE_MIB,
    Metric.MEMORY_RESERVED_MIB,
    Metric.GPU_UTIL_RATIO,
    Metric.SM_ACTIVE_RATIO,
    Metric.SM_OCCUPANCY_RATIO,
    Metric.TENSOR_ACTIVE_RATIO,
    Metric.DRAM_ACTIVE_RATIO,
    Metric.POWER_W,
    Metric.SM_CLOCK_MHZ,
)
SAMPLES, STEP_S, CARD_MIB, NAIVE_GPUS = 20, 15.0, 40_000, 200
START_S = 1_700_000_000.0


def cluster(gpus: int) -> list[Node]:
    return [
        Node(
            f"node-{n:04d}",
            tuple(
                Gpu(i, CARD_MIB, "A100", f"GPU-{n:08x}-0000-{i:04x}")
                for i in range(min(8, gpus - 8 * n))
            ),
        )
        for n in range((gpus + 7) // 8)
    ]


def samples(gpus: int, ticks: int) -> dict[Metric, np.ndarray]:
    """Every metric in the exporter's unit, [gpus, samples + ticks]; memory adds up to a card's."""
    rng = np.random.default_rng(42)
    found = {}
    for metric in METRICS:
        waves = rng.uniform(0.2, 0.8, (gpus, 1)) + rng.normal(0, 0.01, (gpus, SAMPLES + ticks))
        share = np.clip(waves, 0.001, 0.95)
        scale = {
            Metric.MEMORY_FREE_MIB: 1,
            Metric.MEMORY_USED_MIB: 18_000,
            Metric.MEMORY_RESERVED_MIB: 600,
            Metric.GPU_UTIL_RATIO: 100,
            Metric.POWER_W: 400,
            Metric.SM_CLOCK_MHZ: 1980,
        }
        values = share * scale.get(metric, 1)
        found[metric] = np.round(values, 6 if metric not in scale else 0)
    taken = found[Metric.MEMORY_USED_MIB] + found[Metric.MEMORY_RESERVED_MIB]
    found[Metric.MEMORY_FREE_MIB] = CARD_MIB - taken
    return found


def body(metric: Metric, values: np.ndarray, nodes: list[Node], first: int, last: int) -> bytes:
    """The server's answer for samples first to last."""
    name = names_of(metric)[0]
    parts, row = [], 0
    for n, node in enumerate(nodes):
        for gpu in node.gpus:
            labels = {
                "__name__": name,
                "DCGM_FI_DRIVER_VERSION": "550.54.15",
                "Hostname": node.name,
                "UUID": gpu.uuid,
                "container": "exporter",
                "device": f"nvidia{gpu.index}",
                "endpoint": "metrics",
                "gpu": str(gpu.index),
                "instance": f"10.0.{n // 256}.{n % 256}:9400",
                "job": "dcgm-exporter",
                "modelName": "NVIDIA A100-SXM4-40GB",
                "namespace": "gpu-operator",
                "pci_bus_id": "00000000:07:00.0",
                "pod": f"dcgm-exporter-{n:05d}",
                "service": "dcgm-exporter",
            }
            told = ",".join(
                f'[{START_S + STEP_S * k - 1.234 - n % 10:.3f},"{values[row, k]:g}"]'
                for k in range(first, last)
            )
            named = json.dumps(labels, separators=(",", ":"), sort_keys=True)
            parts.append(f'{{"metric":{named},"values":[{told}]}}')
            row += 1
    head = '{"status":"success","data":{"resultType":"matrix","result":['
    return (head + ",".join(parts) + "]}}").encode()


class Look:
    """Everything that happens to answers, with the CPU seconds of its steps."""

    def __init__(self, nodes: list[Node]) -> None:
        self.devices = Devices(nodes)
        self.joiner = SeriesJoiner(self.devices)
        window = MetricWindow(METRICS, len(self.devices), SAMPLES, STEP_S, START_S)
        self.refresher = SnapshotBuilder(window, self.devices, SnapshotSettings(STEP_S, 4))
        pods = np.ones(len(self.devices), dtype=np.int64)
        self.residents = GpuPods(pods, pods)

    def __call__(self, bodies: list[bytes], now_s: float) -> tuple[dict[str, float], SignalsView]:
        steps = dict.fromkeys(("decode", "join", "window", "refresh"), 0.0)
        window = self.refresher.window
        window.advance(now_s)
        self.joiner.begin()
        for one in bodies:
            a = time.process_time()
            answer = decode(one, "bench")
            b = time.process_time()
            joined = self.joiner.join(answer)
            c = time.process_time()
            for found in joined:
                window.put(found.metric, found.rows, found.times, found.values, now_s)
            d = time.process_time()
            steps["decode"] += b - a
            steps["join"] += c - b
            steps["window"] += d - c
        a = time.process_time()
        made = self.refresher.refresh(SnapshotTime(now_s, int(now_s * 1e9), self.residents))
        steps["refresh"] = time.process_time() - a
        steps["all"] = sum(steps.values())
        return steps, SignalsView(made)


def naive_means(bodies: list[bytes], nodes: list[Node]) -> dict[tuple[str, str, int], float]:
    """Mean of the last minute by metric, node and GPU, with one dict a series."""
    known = {node.name: node for node in nodes}
    found = {}
    for one in bodies:
        for series in json.loads(one)["data"]["result"]:
            labels = series["metric"]
            node = known[labels["Hostname"]]
            gpu = next(g for g in node.gpus if g.uuid == labels["UUID"])
            values = [float(text) for _, text in series["values"]]
            kept = [value for value in values if 0 <= value < 2**24]
            recent = kept[-4:]
            ranked = sorted(kept)
            mean = sum(kept) / len(kept)
            spread = sum((value - mean) ** 2 for value in kept)
            away = [value - mean for value in kept]
            lagged = sum(x * y for x, y in zip(away, away[10:], strict=False))
            _ = ranked[int(0.8 * len(ranked))], spread, lagged
            found[labels["__name__"], node.name, gpu.index] = sum(recent) / len(recent)
    return found


def check(view: SignalsView, naive: dict[tuple[str, str, int], float]) -> float:
    """Largest relative difference between the naive means and ours."""
    at = {gpu: i for i, gpu in enumerate(view.source.gpus)}
    row = {name: i for i, name in enumerate(view.source.columns)}
    worst = 0.0
    for (name, node, gpu), value in naive.items():
        metric = next(m for m in METRICS if name in names_of(m))
        ours = view.values[row[metric.value], at[node, gpu]]
        scale = 100 if metric is Metric.GPU_UTIL_RATIO else 1
        worst = max(worst, abs(ours * scale - value) / max(abs(value), 1e-9))
    return worst


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--gpus", type=int, default=10_000)
    options.add_argument("--ticks", type=int, default=5)
    told = options.parse_args()
    nodes = cluster(told.gpus)
    values = samples(told.gpus, told.ticks + 1)
    look = Look(nodes)
    everything = [body(m, values[m], nodes, 1, SAMPLES + 1) for m in METRICS]
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    now_s = START_S + STEP_S * SAMPLES
    first, view = look(everything, now_s)
    few = cluster(NAIVE_GPUS)
    part = [body(m, values[m], few, 1, SAMPLES + 1) for m in METRICS]
    began = time.process_time()
    naive = naive_means(part, few)
    naive_s = (time.process_time() - began) * told.gpus / NAIVE_GPUS
    difference = check(view, naive)
    everything.clear()
    ticks = []
    for tick in range(1, told.ticks + 1):
        last = SAMPLES + tick
        bodies = [body(m, values[m], nodes, last - 2, last + 1) for m in METRICS]
        steps, view = look(bodies, now_s + STEP_S * tick)
        ticks.append(steps)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    usual = {key: numbers.median(tick[key] for tick in ticks) for key in first}
    result = {
        "gpus": told.gpus,
        "metrics": len(METRICS),
        "columns": len(view.source.columns),
        "usual_tick_cpu_s": usual,
        "first_look_cpu_s": first,
        "naive_look_cpu_s": naive_s,
        "largest_relative_difference": difference,
        "peak_mib": peak_mib,
        "before_first_look_mib": before_mib,
    }
    for key, value in result.items():
        print(f"{key}: {value}")
    assert difference < 1e-6, "the naive means differ"
    folder = ROOT / "build" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "telemetry.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
