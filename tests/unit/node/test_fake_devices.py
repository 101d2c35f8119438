"""GPUs that a file plays: stable, read again when the file changes, strict about what it says."""

import os
import re
from pathlib import Path

import msgspec
import pytest

from weft.model import BadInputError
from weft.node.devices.fake import FakeFile, FakeGpu, FakeMig, FakePhase, FakeProcess, FakeReader
from weft.node.devices.reader import DeviceError, GpuDevice, ProcessUse

HEAD = "apiVersion: weft.dev/v1\nkind: FakeDevices\n"
A100 = "{model: NVIDIA-A100-SXM4-40GB, memoryMiB: 40960, reservedMiB: 500"
POD = "0c7e1a2b-0000-4000-8000-000000000001"


def written(folder: Path, text: str, name: str = "fake.yaml") -> Path:
    """The file, whole or not at all, as those who change it under an agent write it."""
    path, beside = folder / name, folder / f"{name}.new"
    beside.write_text(HEAD + text)
    beside.replace(path)
    return path


def reader(folder: Path, text: str, node: str = "n1") -> FakeReader:
    return FakeReader(written(folder, text), node)


def by_index(devices: tuple[GpuDevice, ...]) -> dict[int, GpuDevice]:
    return {device.gpu.index: device for device in devices}


def test_cards_alike_differ_in_what_must_differ(tmp_path: Path) -> None:
    text = f"gpus:\n- {A100}, count: 2, numaNode: 1, minor: 4, paths: ['/dev/fake{{minor}}']}}\n"
    text += "- {model: Tesla-T4, memoryMiB: 16160, uuid: GPU-mine}\nsharedPaths: [/dev/all]"
    fake = reader(tmp_path, text)
    first, second, third = fake.devices()
    assert [d.gpu.index for d in (first, second, third)] == [0, 1, 2]
    assert [d.minor for d in (first, second, third)] == [4, 5, 2]
    assert (first.gpu.memory_mib, first.reserved_mib, first.numa_node) == (40_460, 500, 1)
    assert (second.paths, fake.shared_paths()) == (("/dev/fake5",), ("/dev/all",))
    assert len({d.gpu.uuid for d in fake.devices()} | {d.pci_bus_id for d in fake.devices()}) == 6
    assert third.gpu.uuid == "GPU-mine"
    assert all(d.gpu.in_service for d in fake.devices())
    assert (fake.fake, fake.driver_version()) == (True, "fake")


def test_uuids_are_the_same_each_time_and_others_on_another_node(tmp_path: Path) -> None:
    text = f"gpus:\n- {A100}, count: 2, mig: [{{profile: 1g.5gb, memoryMiB: 4864}}]}}"
    one, again = (
        [d.gpu.uuid for d in reader(tmp_path, text).devices()],
        [d.gpu.uuid for d in reader(tmp_path, text).devices()],
    )
    other = [d.gpu.uuid for d in reader(tmp_path, text, "n2").devices()]
    assert one == again
    assert not set(one) & set(other)


def test_a_card_in_instances_serves_through_them_alone(tmp_path: Path) -> None:
    mig = "[{profile: 1g.5gb, memoryMiB: 4864, count: 2}, {profile: 2g.10gb, memoryMiB: 9856}]"
    devices = by_index(reader(tmp_path, f"gpus:\n- {A100}}}\n- {A100}, mig: {mig}}}").devices())
    assert set(devices) == {0, 1, 2070, 2080, 2090}
    assert (devices[0].gpu.in_service, devices[1].gpu.in_service) == (True, False)
    assert devices[1].fault == ""
    last = devices[2090]
    assert (last.gpu.parent, last.gpu.memory_mib, last.gpu.in_service) == (1, 9_856, True)
    assert last.gpu.model == "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb"
    assert last.mig is not None
    assert (last.mig.profile, last.mig.gpu_instance) == ("2g.10gb", 9)


def test_what_breaks_and_is_mended_shows_at_the_next_reading(tmp_path: Path) -> None:
    fake = reader(tmp_path, f"gpus:\n- {A100}}}\n- {A100}}}")
    uuids = [device.gpu.uuid for device in fake.devices()]
    written(tmp_path, f"gpus:\n- {A100}, xids: [31, 79]}}\n- {A100}}}")
    broken, well = fake.devices()
    assert (broken.fault, broken.gpu.in_service) == ("XID 79: fallen off the bus", False)
    assert (well.fault, well.gpu.in_service) == ("", True)
    written(tmp_path, f"gpus:\n- {A100}, unplugged: true}}\n- {A100}, xids: [31]}}")
    (left,) = fake.devices()
    assert (left.gpu.index, left.gpu.uuid, left.fault) == (1, uuids[1], "")
    written(tmp_path, f"gpus:\n- {A100}}}\n- {A100}}}")
    assert [device.gpu.uuid for device in fake.devices()] == uuids


def test_a_file_that_is_gone_is_a_driver_that_is_gone(tmp_path: Path) -> None:
    fake = reader(tmp_path, f"gpus: [{A100}}}]")
    os.unlink(tmp_path / "fake.yaml")
    with pytest.raises(DeviceError, match=r"fake\.yaml: cannot be read: No such file"):
        fake.devices()
    written(tmp_path, "gpus: [{model: T4}]")
    for _ in range(2):  # it stays broken until it is mended
        with pytest.raises(DeviceError, match="memoryMiB"):
            fake.devices()
    written(tmp_path, f"gpus: [{A100}}}]")
    assert len(fake.devices()) == 1


def test_use_changes_with_time_and_begins_again(tmp_path: Path) -> None:
    use = "[{seconds: 10, values: {sm_active_ratio: 0.9, memory_used_mib: 7}},"
    use += " {seconds: 5, values: {sm_active_ratio: 0.1}}]"
    now = [100.0]
    path = written(tmp_path, f"gpus: [{A100}, use: {use}}}]")
    fake = FakeReader(path, "n1", now_s=lambda: now[0])
    found = []
    for moment_s in (0.0, 9.9, 10.0, 14.9, 15.0):
        now[0] = 100.0 + moment_s
        (used,) = fake.use()
        found.append((used.values["sm_active_ratio"], used.values["memory_used_mib"]))
    assert found == [(0.9, 7), (0.9, 7), (0.1, 0), (0.1, 0), (0.9, 7)]
    assert used.values["memory_free_mib"] == 40_453
    assert used.values["memory_reserved_mib"] == 500


def test_processes_are_found_by_pid_pod_and_cgroup_while_they_run(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    groups = {
        30: f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-a.scope",
        7: f"4:memory:/kubepods/burstable/pod{POD}/b",
        8: "0::/system.slice/x.service",
    }
    for pid, text in groups.items():
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "cgroup").write_text(text + "\n")
    (proc / "meminfo").touch()
    text = f"""
gpus: [{A100}, count: 2}}]
processes:
- {{gpu: 0, pid: 4711, memoryMiB: 100}}
- {{gpu: 0, pod: {POD}, memoryMiB: 200, smRatio: 0.5}}
- {{gpu: 1, cgroup: cri-containerd-a, memoryMiB: 300}}
- {{gpu: 1, pod: not-here, memoryMiB: 400}}
"""
    fake = FakeReader(written(tmp_path, text), "n1", proc=proc)
    assert fake.processes() == (
        ProcessUse(0, 4711, 100),
        ProcessUse(0, 7, 200, 0.5),
        ProcessUse(1, 30, 300),
    )
    assert [used.values["memory_used_mib"] for used in fake.use()] == [300, 300]
    (proc / "7" / "cgroup").unlink()
    assert ProcessUse(0, 30, 200, 0.5) in fake.processes()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpus: [{modle: x}]", "fake.yaml: gpus[0]: Object contains unknown field `modle`; did"),
        ("gpus: [{model: x}]", "fake.yaml: gpus[0]: Object missing required field `memoryMiB`"),
        ("gpus: [{model: x, memoryMiB: many}]", "fake.yaml: gpus[0].memoryMiB: 'many': Expected"),
        ("gpus: [{model: x, memoryMiB: 0}]", "fake.yaml: gpus[0].memoryMiB: 0 must be 1 or more"),
        (
            "gpus: [{model: x, memoryMiB: 9, reservedMiB: 9}]",
            "gpus[0].reservedMiB: 9 must be less than the card's memory (9)",
        ),
        (
            "gpus: [{model: x, memoryMiB: 9, uuid: u, count: 2}]",
            "gpus[0].uuid: 'u' is used for several cards",
        ),
        (
            "gpus: [{model: x, memoryMiB: 9, paths: ['{pid}']}]",
            "gpus[0].paths[0]: '{pid}' has braces for something else",
        ),
        (
            "gpus: [{model: x, memoryMiB: 9, mig: [{profile: p, memoryMiB: 5, count: 2}]}]",
            "gpus[0].mig: 10 MiB in all are more than the card has (9)",
        ),
        (
            "gpus: [{model: x, memoryMiB: 9, use: [{seconds: 1, values: {sm_active: 1}}]}]",
            "gpus[0].use[0].values.sm_active: 'sm_active' is unknown; did you mean",
        ),
        (
            "gpus: [{model: x, memoryMiB: 9, use: [{seconds: 1, values: {power_w: .nan}}]}]",
            "values.power_w: nan is not a valid measurement",
        ),
        ("processes: [{gpu: 0, memoryMiB: 1}]", "processes[0]: must name exactly one of pid, pod"),
        (
            "processes: [{gpu: 0, memoryMiB: 1, pid: 1, pod: x}]",
            "processes[0]: must name exactly one of pid, pod",
        ),
        (
            "gpus: [{model: x, memoryMiB: 9, count: 2000}]",
            "gpus[0].count: 2,000 is more than 1,024; write 1,024 or less",
        ),
        ("kind: Other", "line 3, kind: is written twice"),
        ("gpus: [", "is not YAML"),
    ],
)
def test_a_wrong_file_is_told_by_field_and_value(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInputError) as caught:
        reader(tmp_path, text)
    assert said in str(caught.value)
    assert str(tmp_path / "fake.yaml") in str(caught.value)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    for text, said in (("", "is empty"), ("apiVersion: v1", "'v1' is unknown; write weft.dev/v1")):
        path.write_text(text)
        with pytest.raises(BadInputError, match=said):
            FakeReader(path, "n1")


def test_the_reference_page_names_every_field_and_its_example_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/reference/processes.md").read_text()
    for form in (FakeFile, FakeGpu, FakeMig, FakePhase, FakeProcess):
        for field in msgspec.structs.fields(form):
            if field.name not in ("api_version", "kind", "gpus", "processes", "mig", "use"):
                assert re.search(rf"[`.]{field.encode_name}`", page), field.encode_name
    example = page.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "fake.yaml").write_text(example)
    assert len(FakeReader(tmp_path / "fake.yaml", "n1").devices()) == 10
