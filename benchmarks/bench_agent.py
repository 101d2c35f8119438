"""Costs of the node's agent: memory, processor time, and the wait of each container for it.

A process `weft agent` with 8 played GPUs and 64 processes on them, between a fake API server and a
fake container runtime, which asks about one container of each of 200 pods. Writes
build/bench/agent.json.

    python benchmarks/bench_agent.py [--pods 200] [--idle-s 20]
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from weft.model.annotations import DELIVERY
from weft.model.delivery import (
    DeliveredCard,
    DeliveredContainer,
    DeliveredShare,
    DeliveryRecord,
    encode_delivery,
)
from weft.node.devices.fake import FakeReader
from weft.node.nri import nri_pb2 as nri

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # the fakes

from fakes.api_server import FakeApiServer
from fakes.nri_runtime import FakeRuntime

NODE = "n1"
LISTEN = "127.0.0.1:19400"
GPUS = """apiVersion: weft.dev/v1
kind: FakeDevices
gpus: [{model: A100, memoryMiB: 80000, count: 8, paths: [/dev/null]}]
sharedPaths: [/dev/zero]
processes:
"""
KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{{name: a, cluster: {{server: "{url}"}}}}]
contexts: [{{name: a, context: {{cluster: a, user: a}}}}]
users: [{{name: a, user: {{}}}}]
current-context: a
"""


def start(folder: Path, api: FakeApiServer, runtime: FakeRuntime) -> subprocess.Popen[bytes]:
    """The agent, as a node runs it."""
    processes = (f"- {{gpu: {i % 8}, pid: {os.getpid()}, memoryMiB: 100}}\n" for i in range(64))
    (folder / "gpus.yaml").write_text(GPUS + "".join(processes))
    (folder / "kubeconfig").write_text(KUBECONFIG.format(url=api.url))
    command: list[str | Path] = [sys.executable, "-m", "weft.cli.main", "agent"]
    command += ["--node-name", NODE, "--devices", folder / "gpus.yaml", "--listen", LISTEN]
    command += ["--nri-socket", runtime.socket, "--kubeconfig", folder / "kubeconfig"]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def hook_p99_ms() -> float:
    """The least bound of the agent's own histogram that 99 of 100 answers kept."""
    with urllib.request.urlopen(f"http://{LISTEN}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    pairs = re.findall(r'create_container_seconds_bucket{le="(.*)"} (.*)', text)
    buckets = [(float(bound), float(count)) for bound, count in pairs]
    return 1000 * next(bound for bound, count in buckets if count >= 0.99 * buckets[-1][1])


def used(pid: int) -> tuple[float, float]:
    """MiB of memory, and seconds of processor time so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    resident = status.partition("VmRSS:")[2].split()[0]
    return int(resident) / 1024, ticks / os.sysconf("SC_CLK_TCK")


def bound(api: FakeApiServer, number: int, uuids: list[str]) -> nri.PodSandbox:
    """A pod with a share, as the API server and the runtime have it."""
    name, gpu = f"p{number}", number % len(uuids)
    spec = {"nodeName": NODE, "containers": [{"name": "main"}]}
    uid = api.add("pods", {"metadata": {"name": name}, "spec": spec})["metadata"]["uid"]
    card = DeliveredCard(gpu, uuids[gpu], 1000, 0, 80_000, 1000)
    part = DeliveredContainer((DeliveredShare(gpu, uuids[gpu], 1000, 0),), {"SHARE": "1000"})
    text = encode_delivery(DeliveryRecord(uid, NODE, "weft", (card,), {"main": part}))
    annotations = {DELIVERY: text}
    return nri.PodSandbox(
        id=f"s{number}", name=name, uid=uid, namespace="default", annotations=annotations
    )


async def ask(api: FakeApiServer, runtime: FakeRuntime, uuids: list[str], pods: int) -> list[float]:
    """Milliseconds that each container waited: both of the plugin's answers, and the sockets."""
    waits, env = [], [f"VARIABLE_{i}=value" for i in range(30)]
    for number in range(pods):
        pod = bound(api, number, uuids)
        await asyncio.sleep(0.02)  # pods come one after the other
        main = nri.Container(id=f"c{number}", pod_sandbox_id=pod.id, name="main", env=env)
        began = time.perf_counter()
        started = await runtime.create(pod, main)
        waits.append((time.perf_counter() - began) * 1000)
        if started.env["NVIDIA_VISIBLE_DEVICES"] != uuids[number % len(uuids)]:
            raise SystemExit(f"pod {number} has another GPU than its record says")
    return sorted(waits)


async def measure(pods: int, idle_s: float) -> dict[str, float]:
    """Start it, ask about so many pods, and leave it alone for a while."""
    folder = Path(tempfile.mkdtemp(prefix="weft-bench-"))
    async with FakeApiServer() as api, FakeRuntime(folder / "nri.sock") as runtime:
        api.add("nodes", {"metadata": {"name": NODE}, "status": {"allocatable": {}}})
        process = start(folder, api, runtime)
        try:
            await asyncio.wait_for(runtime.has_plugin(), 60)
            uuids = [d.gpu.uuid for d in FakeReader(folder / "gpus.yaml", NODE).devices()]
            waits = await ask(api, runtime, uuids, pods)
            hook_ms = await asyncio.to_thread(hook_p99_ms)
            _, before_s = used(process.pid)
            await asyncio.sleep(idle_s)
            memory_mib, after_s = used(process.pid)
        finally:
            process.terminate()
            process.wait()
    return {
        "pods": pods,
        "hook_p99_at_most_ms": hook_ms,
        "wait_p50_ms": waits[len(waits) // 2],
        "wait_p99_ms": waits[int(len(waits) * 0.99)],
        "memory_mib": memory_mib,
        "core_percent": 100 * (after_s - before_s) / idle_s,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--idle-s", type=float, default=20)
    options = parser.parse_args()
    found = asyncio.run(measure(options.pods, options.idle_s))
    folder = Path("build/bench")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, value in found.items():
        print(f"{name}: {value:.2f}")


if __name__ == "__main__":
    main()
