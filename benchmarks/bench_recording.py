"""The cost of keeping decisions on record: encoding lines, and sealing them with their hashes.

Lines are those of a simulated day, encoded again and again as a running scheduler does it: encoded
where it decides, sealed in batches of a second beside it. Writes build/bench/recording.json.

    python benchmarks/bench_recording.py [--gpus 200] [--rounds 20]
"""

import argparse
import io
import json
import time
from pathlib import Path

import msgspec

from weft.core.policies.packing import BestFit
from weft.core.record import DecisionLine, DecisionsWriter
from weft.core.record.chain import Chain
from weft.lab.simulate.arrivals import draw
from weft.lab.simulate.generate import WorkloadMix, generate_nodes, generate_pods
from weft.lab.simulate.openb import read_nodes, read_pods
from weft.lab.simulate.scenario import Scenario
from weft.lab.simulate.timed import run_timed


def day(gpus: int, folder: Path) -> list[DecisionLine]:
    """The lines of a simulated day."""
    nodes, pods = folder / "nodes.csv", folder / "pods.csv"
    nodes.write_text(generate_nodes(gpus=gpus, count=None, seed=1))
    pods.write_text(generate_pods(gpus=gpus, count=None, mix=WorkloadMix.DEFAULT, load=1.5, seed=1))
    world = Scenario(read_nodes(nodes), read_pods(pods))
    order = draw(world.pods, len(world.nodes), world.capacity_milli, 1, 1.0)
    out = io.BytesIO()
    run_timed(world, BestFit(), order, decisions=DecisionsWriter(out))
    return [
        msgspec.json.decode(line, type=DecisionLine) for line in out.getvalue().splitlines()[1:]
    ]


def measure(lines: list[DecisionLine], rounds: int) -> dict[str, float]:
    """Microseconds a line, the best of all rounds."""
    encoder, best = msgspec.json.Encoder(), {"encode_us": 1e9, "seal_us": 1e9}
    for _ in range(rounds):
        begin = time.perf_counter()
        texts = [encoder.encode(line) for line in lines]
        encoded = time.perf_counter()
        chain = Chain()
        sealed = [chain.sealed(text) for text in texts]
        done = time.perf_counter()
        for name, took in (("encode_us", encoded - begin), ("seal_us", done - encoded)):
            best[name] = min(best[name], took / len(lines) * 1e6)
    size = sum(map(len, texts))
    more = sum(map(len, sealed)) - size
    return best | {
        "lines": len(lines),
        "bytes_a_line": size / len(lines),
        "more_bytes": more / size,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    folder = Path("build/bench")
    folder.mkdir(parents=True, exist_ok=True)
    found = measure(day(options.gpus, folder), options.rounds)
    text = json.dumps({name: round(value, 3) for name, value in found.items()}, indent=1)
    (folder / "recording.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
