"""Each mode's environment and mounts, and what a node refuses that it lacks."""

import time
from pathlib import Path

import pytest
from test_fake_devices import written

from weft.model.delivery import (
    DeliveredCard,
    DeliveredContainer,
    DeliveredShare,
    DeliveryRecord,
)
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.isolation import (
    AddedMount,
    IsolationAdditions,
    IsolationError,
    IsolationOptions,
    NodeIsolation,
)
from weft.node.agent.mps_daemon import MpsDaemon, MpsOptions
from weft.node.devices.fake import FakeReader

CARDS = """
gpus:
- {model: A, memoryMiB: 40000, pciBusId: "00000000:90:00.0"}
- {model: A, memoryMiB: 40000, pciBusId: "00000000:10:00.0"}
- {model: A, memoryMiB: 40000, mig: [{profile: 1g, memoryMiB: 5000, count: 2}]}
"""


def record(isolation: str, *shares: tuple[int, int, int], pod: str = "uid-1") -> DeliveryRecord:
    """A pod whose container `main` has these parts: (GPU, MiB, thousandths)."""
    held = tuple(DeliveredShare(gpu, f"u{gpu}", mib, milli) for gpu, mib, milli in shares)
    cards = tuple(DeliveredCard(s.gpu, s.uuid, 40_000, 1_000, 40_000, 1_000) for s in held)
    containers = {"main": DeliveredContainer(held), "beside": DeliveredContainer()}
    return DeliveryRecord(pod, "n1", "weft", cards, containers, isolation)


@pytest.fixture
async def watch(tmp_path: Path) -> DeviceWatch:
    watch = DeviceWatch(FakeReader(written(tmp_path, CARDS), "n1"))
    await watch.read()
    return watch


@pytest.fixture
def isolation(watch: DeviceWatch, tmp_path: Path) -> NodeIsolation:
    mps = MpsDaemon(MpsOptions(tmp_path / "mps", "mps-control"))
    mps.ready = True
    library = tmp_path / "libvgpu.so"
    library.touch()
    options = IsolationOptions(hook_library=str(library), folder=tmp_path / "hook")
    return NodeIsolation(options, watch, mps)


def test_limits_of_mps_go_by_the_order_in_which_the_container_sees_its_gpus(
    isolation: NodeIsolation, tmp_path: Path
) -> None:
    added = isolation.additions(record("mps", (0, 2_000, 300), (1, 3_000, 255)), "main")
    assert added.env == {
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "mps" / "pipe"),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # GPU 1 comes first on the bus.
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3000M,1=2000M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "26",
    }
    assert added.mounts == (
        AddedMount(str(tmp_path / "mps/pipe"), str(tmp_path / "mps/pipe"), read_only=False),
        AddedMount(str(tmp_path / "mps/shm"), "/dev/shm", read_only=False),
    )


def test_what_was_not_asked_for_is_no_limit(isolation: NodeIsolation) -> None:
    env = isolation.additions(record("mps", (0, 0, 0), (1, 700, 0)), "main").env
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=700M"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in env
    assert "CUDA_DEVICE_SM_LIMIT" not in isolation.additions(record("hook", (0, 5, 0)), "main").env


def test_two_shares_of_one_gpu_are_one_limit(isolation: NodeIsolation) -> None:
    env = isolation.additions(record("mps", (0, 500, 100), (0, 700, 200)), "main").env
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1200M"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"


def test_the_hook_is_loaded_read_only_with_limits_and_a_folder_of_its_own(
    isolation: NodeIsolation, tmp_path: Path
) -> None:
    added = isolation.additions(record("hook", (0, 2_000, 300), (1, 3_000, 0)), "main")
    assert added.env == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "2000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/containers/vgpu.cache",
    }
    by_place = {mount.container: mount for mount in added.mounts}
    assert by_place["/usr/local/vgpu/libvgpu.so"].read_only
    assert by_place["/etc/ld.so.preload"].read_only
    preload = Path(by_place["/etc/ld.so.preload"].host)
    assert preload.read_text() == "/usr/local/vgpu/libvgpu.so\n"
    own = Path(by_place["/usr/local/vgpu/containers"].host)
    assert own.is_dir()
    other = isolation.additions(record("hook", (0, 1, 1), pod="uid-2"), "main")
    assert own != Path({m.container: m.host for m in other.mounts}["/usr/local/vgpu/containers"])
    isolation.prune({"uid-2"}, time.time() + 60)
    assert own.exists()  # its pod may be one that nobody told of yet
    isolation.prune({"uid-2"}, time.time() + 3_600)
    assert not own.exists()
    assert [f.name for f in (tmp_path / "hook" / "containers").iterdir()] == ["uid-2@main"]


def test_a_name_that_would_leave_the_folder_stays_in_it(
    isolation: NodeIsolation, tmp_path: Path
) -> None:
    isolation.additions(record("hook", (0, 1, 1), pod="../../x"), "main")
    assert [f.name for f in (tmp_path / "hook" / "containers").iterdir()] == [".._.._x@main"]


@pytest.mark.parametrize("mode", ["", "none", "time-slicing"])
def test_sharing_of_time_adds_nothing(isolation: NodeIsolation, mode: str) -> None:
    assert isolation.additions(record(mode, (0, 5, 5)), "main") == IsolationAdditions()


def test_containers_without_a_share_get_nothing(isolation: NodeIsolation) -> None:
    for name in ("beside", "unknown"):
        assert isolation.additions(record("mps", (0, 5, 5)), name) == IsolationAdditions()


def test_instances_isolate_themselves(isolation: NodeIsolation) -> None:
    for mode in ("mig", ""):
        assert isolation.additions(record(mode, (3_070, 5_000, 1_000)), "main").env == {}
    with pytest.raises(IsolationError, match="GPU 0 is not a MIG instance"):
        isolation.additions(record("mig", (3_070, 5, 5), (0, 5, 5)), "main")
    with pytest.raises(IsolationError, match="GPU 3070 is a MIG instance; MPS runs on whole cards"):
        isolation.additions(record("mps", (3_070, 5, 5)), "main")


def test_a_mode_that_the_node_lacks_is_refused_with_a_reason(watch: DeviceWatch) -> None:
    bare = NodeIsolation(IsolationOptions(), watch)
    assert bare.offered() == ("none", "time-slicing", "mig")
    for mode, reason in (
        ("mps", "MPS is off on this node"),
        ("hook", "HAMi-core's library is missing: no path is set"),
        ("sandbox", "'sandbox' is not an isolation mode of this agent: none, time-slicing, mig"),
    ):
        with pytest.raises(IsolationError, match=reason):
            bare.additions(record(mode, (0, 5, 5)), "main")
    with pytest.raises(IsolationError, match="GPU 7 is not on this node now"):
        bare.additions(record("", (7, 5, 5)), "main")


async def test_what_is_offered_follows_what_is_there(
    isolation: NodeIsolation, watch: DeviceWatch, tmp_path: Path
) -> None:
    assert isolation.offered() == ("none", "time-slicing", "mps", "hook", "mig")
    assert isolation._mps is not None
    isolation._mps.ready, isolation._mps.problem = False, "it died"
    (tmp_path / "libvgpu.so").unlink()
    written(tmp_path, "gpus: [{model: A, memoryMiB: 9}]")
    await watch.read()
    assert isolation.offered() == ("none", "time-slicing")
    with pytest.raises(IsolationError, match="MPS is not available: it died"):
        isolation.additions(record("mps", (0, 5, 5)), "main")


def test_the_nodes_own_choice_is_for_pods_that_name_none(
    watch: DeviceWatch, isolation: NodeIsolation
) -> None:
    chosen = NodeIsolation(IsolationOptions(default="mps"), watch, isolation._mps)
    assert "CUDA_MPS_PIPE_DIRECTORY" in chosen.additions(record("", (0, 5, 5)), "main").env
    assert chosen.additions(record("time-slicing", (0, 5, 5)), "main").env == {}
