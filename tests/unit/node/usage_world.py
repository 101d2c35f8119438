"""A machine with played GPUs, a /proc of its own, and pods that are known by their UIDs."""

from pathlib import Path

from test_fake_devices import HEAD

from weft.model.delivery import DeliveredCard, DeliveryRecord
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.over_share import OverShareGuard, OverShareOptions
from weft.node.agent.usage import UsageWatch, WatchedPod
from weft.node.agent.usage_metrics import UsageMetrics
from weft.node.devices.fake import FakeReader

TRAIN, SERVE = (f"0c7e1a2b-0000-4000-8000-00000000000{n}" for n in (1, 2))
IDS = {name: f"{n:064x}" for n, name in enumerate(("main", "sidecar", "web"), start=1)}


def record(uid: str, **mib_by_gpu: int) -> DeliveryRecord:
    """So many MiB of `gpu<index>`."""
    cards = tuple(
        DeliveredCard(int(gpu.removeprefix("gpu")), "", mib, 0, 80_000, 1000)
        for gpu, mib in mib_by_gpu.items()
    )
    return DeliveryRecord(uid, "n1", "weft", cards, {})


class Pods:
    """A `PodDirectory` of what it is told."""

    def __init__(self) -> None:
        self.known: dict[str, WatchedPod] = {}

    def add(
        self,
        uid: str,
        name: str,
        promised: DeliveryRecord | None,
        *containers: str,
        workload: str = "",
        queue: str = "",
        **labels: str,
    ) -> None:
        ids = {IDS[container]: container for container in containers}
        self.known[uid] = WatchedPod(uid, "ml", name, promised, ids, workload, labels, queue)

    def watched(self, uid: str) -> WatchedPod | None:
        return self.known.get(uid)


class Machine:
    """Write `gpus` and `processes`, then `read`; time stands still but for `now_s`."""

    def __init__(self, folder: Path, gpus: str, options: OverShareOptions | None = None) -> None:
        self.proc, self.file, self.gpus = folder / "proc", folder / "fake.yaml", gpus
        self.proc.mkdir()
        self.now_s, self.pids = 100.0, 0
        self.processes: list[str] = []
        self.notes: list[str] = []
        self.evicted: list[str] = []
        self.refusal: Exception | None = None
        self.pods = Pods()
        self.write()
        reader = FakeReader(self.file, "n1", now_s=lambda: self.now_s, proc=self.proc)
        self.devices = DeviceWatch(reader)
        self.watch = UsageWatch(self.devices, self.pods, proc=self.proc, now_s=lambda: self.now_s)
        self.guard = OverShareGuard(
            lambda note: self.notes.append(f"{note.regarding.name}: {note.note}"),
            self._evict,
            options,
        )
        self.watch.observers.append(self.guard.observe)
        self.metrics = UsageMetrics("n1", self.watch, self.guard, ("team",))

    async def _evict(self, pod: WatchedPod) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.evicted.append(pod.name)

    def process(self, gpu: int, mib: int, cgroup: str = "/", command: str = "python3") -> None:
        """One more process on a GPU."""
        self.pids += 1
        folder = self.proc / str(self.pids)
        folder.mkdir()
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        (folder / "comm").write_text(f"{command}\n")
        ratio = f", smRatio: {min(1.0, mib / 10_000)}"
        self.processes.append(f"{{gpu: {gpu}, pid: {self.pids}, memoryMiB: {mib}{ratio}}}")

    def of_pod(self, gpu: int, mib: int, uid: str, container: str) -> None:
        """One more process, in this container."""
        self.process(gpu, mib, f"/kubepods/burstable/pod{uid}/{IDS[container]}")

    def write(self) -> None:
        """The file, as it is to be read next."""
        beside = self.file.with_suffix(".new")
        beside.write_text(f"{HEAD}gpus: {self.gpus}\nprocesses: [{', '.join(self.processes)}]\n")
        beside.replace(self.file)

    async def read(self, after_s: float = 0) -> None:
        """Time passes, then everything is read."""
        self.now_s += after_s
        self.write()
        await self.devices.read()
        await self.watch.read()
