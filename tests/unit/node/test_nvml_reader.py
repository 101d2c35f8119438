"""A machine's GPUs through NVML (a fake): what they are, whether they are well, what they do."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.nvml import LOST, FakeNvml, FakeNvmlCard, FakeNvmlInstance
from weft.node.devices.nvml import NvmlReader
from weft.node.devices.reader import DeviceError, GpuDevice, NoDriverError, ProcessUse
from weft.node.devices.xid_watch import XidEvent, XidWatch

PATIENCE_S = 60.0


class Stage:
    """A machine with two cards, its files, a clock, and the reader."""

    def __init__(self, root: Path) -> None:
        self.root, self.now_s = root, 1_000.0
        self.first, self.second = FakeNvmlCard(0), FakeNvmlCard(1, "Tesla T4")
        self.second.total_mib, self.second.reserved_mib, self.second.minor = 15_360, 450, 5
        self.nvml = FakeNvml(self.first, self.second)
        self.openings: list[FakeNvml] = []
        self.reader = NvmlReader(self.open, root=root, now_s=lambda: self.now_s)

    def open(self) -> FakeNvml:
        if self.openings:
            self.nvml.nvmlInit()
        self.openings.append(self.nvml)
        return self.nvml

    def file(self, path: str, text: str = "") -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def devices(self) -> dict[int, GpuDevice]:
        return {device.gpu.index: device for device in self.reader.devices()}

    def faults(self) -> dict[int, str]:
        """Each device's fault; a device is in service just where it has none."""
        found = self.devices()
        assert all(d.gpu.in_service == (not d.fault) or self._cut(d, found) for d in found.values())
        return {index: device.fault for index, device in found.items()}

    def _cut(self, device: GpuDevice, found: dict[int, GpuDevice]) -> bool:
        return any(other.gpu.parent == device.gpu.index for other in found.values())

    def xid(self, card: FakeNvmlCard, number: int, gi: int | None = None) -> None:
        """The card reports an error, and the reader has heard it."""
        self.nvml.xid(card, number, gi)
        self.nvml.xid(card, 31)  # heard after it; no fault by itself
        heard = self.reader._xids
        assert heard is not None
        deadline = time.monotonic() + PATIENCE_S
        while not any(event.xid == 31 for event in heard._heard):
            assert time.monotonic() < deadline
            time.sleep(0.005)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.reader.close()
    assert (made.nvml.opened, made.nvml.samples, made.nvml.sets) == (0, 0, 0)


def test_a_driver_that_is_installed_later_is_found(tmp_path: Path) -> None:
    """And where its library cannot be seen, whoever waits hears of it: once it is in the kernel."""
    nvml, late, there = FakeNvml(FakeNvmlCard(0)), [], []

    def open_library() -> FakeNvml:
        if not there:
            raise NoDriverError("no NVIDIA GPU found: NVML Shared Library Not Found")
        return nvml

    with pytest.raises(NoDriverError):
        NvmlReader(open_library, root=tmp_path)
    reader = NvmlReader(open_library, root=tmp_path, on_late_driver=lambda: late.append(1))
    for _ in range(2):
        with pytest.raises(DeviceError, match="Not Found"):
            reader.devices()
    assert not late
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version")
    with pytest.raises(DeviceError):
        reader.devices()
    assert late
    there.append(True)
    assert len(reader.devices()) == 1
    # One that was there from the start is not waited for: it would end the agent again and again.
    there.clear()
    late.clear()
    reader = NvmlReader(open_library, root=tmp_path, on_late_driver=lambda: late.append(1))
    with pytest.raises(DeviceError):
        reader.devices()
    assert not late


def test_cards_are_told_as_the_node_reports_them(stage: Stage) -> None:
    stage.file("sys/bus/pci/devices/0000:20:00.0/numa_node", "1\n")
    stage.file("sys/bus/pci/devices/0000:10:00.0/numa_node", "-1\n")
    for name in ("nvidiactl", "nvidia-uvm"):
        stage.file(f"dev/{name}")
    first, second = stage.reader.devices()
    assert (first.gpu.model, first.gpu.uuid) == ("NVIDIA-H100-80GB-HBM3", "GPU-1")
    assert (first.numa_node, second.numa_node) == (None, 1)
    assert (second.gpu.memory_mib, second.reserved_mib) == (14_910, 450)
    assert (second.gpu.index, second.minor, second.paths) == (1, 5, ("/dev/nvidia5",))
    assert second.pci_bus_id == "00000000:20:00.0"
    assert stage.reader.shared_paths() == ("/dev/nvidiactl", "/dev/nvidia-uvm")
    assert (stage.reader.fake, stage.reader.driver_version()) == (False, "580.1")


def test_an_old_driver_says_nothing_of_what_it_reserves(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(FakeNvml, "nvmlMemory_v2")
    monkeypatch.setattr(
        FakeNvml,
        "nvmlDeviceGetMemoryInfo",
        lambda self, device: type("M", (), {"total": device.total_mib << 20})(),
    )
    assert stage.devices()[1].gpu.memory_mib == 15_360


def test_instances_have_numbers_that_stay_and_their_capabilities(stage: Stage) -> None:
    stage.second.mig = True
    stage.second.instances = [
        FakeNvmlInstance(9, "1g.5gb", 4_864),
        FakeNvmlInstance(2, "3g.20gb", 19_968),
    ]
    stage.second.instances[1].processes = [(11, 700)]
    stage.second.instances[1].used_mib = 700
    caps = "proc/driver/nvidia/capabilities/gpu5/mig/gi2"
    stage.file(f"{caps}/access", "DeviceFileMinor: 21\nDeviceFileMode: 256\n")
    stage.file(f"{caps}/ci0/access", "DeviceFileMinor: 22\nDeviceFileMode: 256\n")
    devices = stage.devices()
    assert sorted(devices) == [0, 1, 2020, 2090]
    assert (devices[1].gpu.in_service, devices[1].fault) == (False, "")
    instance = devices[2020]
    assert (instance.gpu.parent, instance.gpu.uuid) == (1, "MIG-2-0")
    assert instance.gpu.model == "Tesla-T4-MIG-3g.20gb"
    assert (instance.gpu.memory_mib, instance.gpu.in_service) == (19_968, True)
    caps_nodes = ("/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22")
    assert instance.paths == ("/dev/nvidia5", *caps_nodes)
    assert instance.mig is not None
    assert instance.mig.profile == "3g.20gb"
    assert ProcessUse(2020, 11, 700) in stage.reader.processes()
    (used,) = [use.values for use in stage.reader.use() if use.index == 2020]
    assert (used["memory_used_mib"], "power_w" in used) == (700, False)
    del stage.second.instances[0]
    assert stage.devices()[2020].gpu == instance.gpu


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_what_a_program_brings_on_itself_breaks_no_card(stage: Stage, xid: int) -> None:
    stage.reader.devices()
    stage.xid(stage.first, xid)
    assert stage.faults() == {0: "", 1: ""}


def test_a_driver_that_says_nothing_need_be_done_is_believed_after_a_while(stage: Stage) -> None:
    stage.first.recovery_action = 1
    stage.reader.devices()
    stage.xid(stage.first, 94)
    assert stage.faults() == {0: "XID 94: contained ECC error", 1: ""}
    stage.now_s += 60
    assert stage.faults()[0] != ""  # it still wants a reset
    stage.first.recovery_action = 0
    assert stage.faults()[0] == ""
    stage.xid(stage.first, 94)
    assert stage.faults()[0] != ""  # nothing need be done, says what may be older than the error
    stage.now_s += 60
    assert stage.faults()[0] == ""


def test_an_energy_counter_that_went_back_is_a_card_that_was_reset(stage: Stage) -> None:
    stage.first.energy_mj = 5_000_000
    stage.reader.devices()
    stage.xid(stage.first, 79)
    stage.now_s += 3_600
    stage.first.energy_mj = 5_000_001
    assert stage.faults()[0] == "XID 79: fallen off the bus"
    stage.first.energy_mj = 70
    assert stage.faults()[0] == ""


def test_an_error_that_nothing_takes_back_stays(stage: Stage) -> None:
    stage.reader.devices()
    stage.xid(stage.first, 48)
    for _ in range(3):
        stage.now_s += 100_000
        assert stage.faults()[0] == "XID 48: double-bit ECC error"


def test_a_card_that_does_not_answer_stays_known_and_comes_back(stage: Stage) -> None:
    before = stage.devices()
    stage.xid(stage.first, 79)
    for _ in range(2):
        stage.first.error = LOST
        lost = stage.devices()
        assert lost[0].fault == "NVML says: GPU is lost"
        assert lost[0].gpu.memory_mib == before[0].gpu.memory_mib
        assert not lost[0].gpu.in_service
        assert lost[1] == before[1]
        assert [use.index for use in stage.reader.use()] == [1]
        stage.first.error = 0
        assert stage.devices() == before


def test_an_error_in_the_moment_of_the_first_reading_is_heard(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = XidWatch.take

    def late(watch: XidWatch) -> list[XidEvent]:
        deadline = time.monotonic() + PATIENCE_S
        while not watch._heard:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return take(watch)

    monkeypatch.setattr(XidWatch, "take", late)
    stage.nvml.xid(stage.first, 79)
    assert stage.faults()[0] == "XID 79: fallen off the bus"


def test_an_error_of_one_instance_leaves_the_others(stage: Stage) -> None:
    stage.first.mig = True
    stage.first.instances = [FakeNvmlInstance(gi, "1g.10gb", 9_728) for gi in (7, 8)]
    stage.reader.devices()
    stage.xid(stage.first, 94, gi=8)
    found = stage.devices()
    assert {i: d.gpu.in_service for i, d in found.items()} == {
        0: False,
        1: True,
        1070: True,
        1080: False,
    }
    assert (found[0].fault, found[1080].fault) == ("", "XID 94: contained ECC error")
    stage.xid(stage.first, 79)
    assert {i: d.gpu.in_service for i, d in stage.devices().items()} == {
        0: False,
        1: True,
        1070: False,
        1080: False,
    }


def test_a_driver_that_is_replaced_is_opened_again(stage: Stage) -> None:
    before = stage.devices()
    stage.nvml.error = 9
    with pytest.raises(DeviceError, match="NVML says: error 9"):
        stage.reader.devices()
    with pytest.raises(Exception, match="error 9"):
        stage.reader.devices()
    stage.nvml.error = 0
    assert stage.devices() == before
    assert len(stage.openings) == 2


def test_cards_that_know_no_events_are_read_all_the_same(stage: Stage) -> None:
    stage.first.knows_xids = stage.second.knows_xids = False
    assert stage.faults() == {0: "", 1: ""}
    stage.second.error = LOST
    assert stage.faults()[1] != ""


def test_what_is_on_a_card_comes_with_its_share_of_sm_time(stage: Stage) -> None:
    stage.first.processes = [(7, 3 << 10), (8, None), (9, 20)]
    stage.first.clients = [(9, 512)]  # by way of MPS
    stage.first.sm_percent = [(7, 100, 40), (9, 90, 10)]
    stage.second.processes = [(70, 1)]
    assert stage.reader.processes() == (
        ProcessUse(0, 7, 3_072, 0.4),
        ProcessUse(0, 8, 0, 0.0),
        ProcessUse(0, 9, 512, 0.1),
        ProcessUse(1, 70, 1, None),
    )
    stage.first.sm_percent += [(9, 200, 60), (9, 300, 80)]
    found = {process.pid: process.sm_ratio for process in stage.reader.processes()}
    assert found == {7: 0.0, 8: 0.0, 9: 0.7, 70: None}
    assert {p.pid: p.sm_ratio for p in stage.reader.processes()}[9] == 0.0


def test_processes_are_told_by_a_driver_that_knows_older_calls_alone(stage: Stage) -> None:
    stage.nvml.old_driver = True
    stage.first.processes = [(7, 100)]
    assert stage.reader.processes() == (ProcessUse(0, 7, 100),)


def test_use_has_the_names_that_telemetry_reads(stage: Stage) -> None:
    stage.first.gpm = {2: 75.0, 10: 25.0}
    stage.first.energy_mj, stage.first.reserved_mib = 7_000, 600
    stage.reader.use()
    first, second = stage.reader.use()
    assert first.values == {
        "memory_used_mib": 1_000,
        "memory_free_mib": 79_959,
        "memory_reserved_mib": 600,
        "gpu_util_ratio": 0.87,
        "memory_copy_ratio": 0.12,
        "sm_active_ratio": 0.75,
        "dram_active_ratio": 0.25,
        "power_w": 350,
        "power_limit_w": 700,
        "energy_j": 7,
        "encoder_ratio": 0.25,
        "sm_clock_mhz": 1_980,
        "memory_clock_mhz": 2_619,
    }
    assert "sm_active_ratio" not in second.values


def test_a_card_that_is_plugged_in_later_is_heard_too(stage: Stage) -> None:
    assert len(stage.devices()) == 2
    third = FakeNvmlCard(2)
    stage.nvml.cards.append(third)
    assert len(stage.devices()) == 3
    stage.xid(third, 79)
    assert stage.faults() == {0: "", 1: "", 2: "XID 79: fallen off the bus"}
