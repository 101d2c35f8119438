"""`weft doctor` judges a machine by trees of files."""

import json
from pathlib import Path

import pytest
from test_fake_devices import A100, reader

from weft.node.devices.reader import DeviceError, DeviceReader
from weft.node.doctor import machine
from weft.node.doctor.machine import MachinePod

UID, OTHER = (f"0c7e1a2b-0000-4000-8000-00000000000{n}" for n in (1, 2))
ID = "ab" * 32
VALIDATOR = """version = 3
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  [plugins."io.containerd.nri.v1.nri".default_validator]
    enable = {enable}
"""


def no_driver() -> DeviceReader:
    raise DeviceError("no nvidia-ml-py here")


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def process(proc: Path, pid: int, uid: str, *devices: str) -> None:
    put(proc / str(pid) / "cgroup", f"0::/kubepods/pod{uid}/{ID}\n")
    for device in devices:
        put(proc / str(pid) / "root" / "dev" / device)


def test_a_driver_that_answers_and_one_that_does_not(tmp_path: Path) -> None:
    found = machine.driver(lambda: reader(tmp_path, f"gpus: [{A100}, count: 2}}]"))
    assert (found.level, found.text) == ("good", "driver fake, 2 GPUs (simulated)")
    missing = machine.driver(no_driver)
    assert (missing.level, missing.text) == ("wrong", "no nvidia-ml-py here")
    assert "install NVIDIA's driver" in missing.mend
    assert machine.driver(lambda: reader(tmp_path, "gpus: []")).level == "wrong"


def test_a_gpu_with_a_fault_is_named(tmp_path: Path) -> None:
    found = machine.driver(lambda: reader(tmp_path, f"gpus: [{A100}, xids: [79]}}]"))
    assert found.level == "wrong"
    assert "GPU 0: XID 79: fallen off the bus" in found.text


def test_cdi_specifications_of_other_gpus_are_named_with_the_remedy(tmp_path: Path) -> None:
    text = f"gpus: [{A100}, count: 2, paths: ['/dev/nvidia{{minor}}']}}]"

    def found() -> tuple[str, str, str]:
        finding = machine.cdi(tmp_path, lambda: reader(tmp_path, text))
        return finding.level, finding.text, finding.mend

    def spec(file: str, **brought: str) -> None:
        devices = [
            {"name": name[1:], "containerEdits": {"deviceNodes": [{"path": path}]}}
            for name, path in brought.items()
        ]
        put(tmp_path / file, json.dumps({"kind": "nvidia.com/gpu", "devices": devices}))

    assert found()[:2] == (
        "good",
        "no specification names these GPUs: they are passed as device nodes",
    )
    spec("var/run/cdi/nvidia.json", _0="/dev/nvidia0", _1="/dev/nvidia1")
    put(tmp_path / "var/run/cdi/weft-delivery-0.json", "{")
    assert found()[:2] == ("good", "2 of 2 GPUs and MIG instances have CDI names")
    spec("var/run/cdi/nvidia.json", _0="/dev/nvidia0", _1="/dev/nvidia7")
    level, said, mend = found()
    assert level == "advice"
    assert "nvidia.com/gpu=1 brings /dev/nvidia7, but GPU 1 has /dev/nvidia1" in said
    assert "nvidia-ctk cdi generate" in mend
    spec("var/run/cdi/old.json", _0="/dev/nvidia0")
    assert "nvidia.com/gpu=0 is in two specifications of one folder" in found()[1]
    put(tmp_path / "etc/cdi/broken.json", "{")
    assert "broken.json cannot be read" in found()[1]
    assert machine.cdi(tmp_path, no_driver).text == "not known: GPUs cannot be read"


def test_device_nodes_that_are_missing_are_named(tmp_path: Path) -> None:
    text = f"gpus: [{A100}, count: 2, paths: ['/dev/nvidia{{minor}}']}}]\nsharedPaths: [/dev/ctl]"
    put(tmp_path / "dev" / "nvidia0")
    put(tmp_path / "dev" / "ctl")
    found = machine.device_nodes(tmp_path, lambda: reader(tmp_path, text))
    assert (found.level, found.text) == ("wrong", "missing: /dev/nvidia1")
    put(tmp_path / "dev" / "nvidia1")
    assert machine.device_nodes(tmp_path, lambda: reader(tmp_path, text)).level == "good"
    assert machine.device_nodes(tmp_path, no_driver).level == "advice"


def test_the_runtimes_socket_for_plugins(tmp_path: Path) -> None:
    missing = machine.nri_socket(tmp_path)
    assert missing.level == "wrong"
    assert "disable = false" in missing.mend
    put(tmp_path / machine.NRI_SOCKET)
    assert machine.nri_socket(tmp_path).level == "good"


@pytest.mark.parametrize(
    ("text", "level", "said"),
    [
        (VALIDATOR.format(enable="true"), "good", "enabled"),
        (VALIDATOR.format(enable="false"), "advice", "not enabled"),
        ("version = 3\n", "advice", "not enabled"),
        ('plugins = "none"\n', "advice", "not enabled"),
        ("version = \n", "advice", "cannot be read"),
        (None, "advice", "there is no /etc/containerd/config.toml"),
    ],
)
def test_whether_a_container_may_start_without_the_agent(
    tmp_path: Path, text: str | None, level: str, said: str
) -> None:
    if text is not None:
        put(tmp_path / machine.CONTAINERD, text)
    found = machine.validator(tmp_path)
    assert found.level == level
    assert said in found.text
    assert bool(found.mend) is (level != "good")


def test_a_validator_that_an_imported_file_enables(tmp_path: Path) -> None:
    put(tmp_path / machine.CONTAINERD, 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    put(tmp_path / "etc/containerd/conf.d/nri.toml", VALIDATOR.format(enable="true"))
    assert machine.validator(tmp_path).level == "good"


def test_the_kubelets_sockets(tmp_path: Path) -> None:
    assert machine.kubelet_sockets(tmp_path).level == "wrong"
    put(tmp_path / machine.DEVICE_PLUGINS / "kubelet.sock")
    found = machine.kubelet_sockets(tmp_path)
    assert (found.level, found.text) == ("advice", f"missing: /{machine.POD_RESOURCES}")
    put(tmp_path / machine.POD_RESOURCES)
    assert machine.kubelet_sockets(tmp_path).level == "good"


def test_other_gpu_plugins_on_the_machine(tmp_path: Path) -> None:
    assert machine.other_plugins(tmp_path, ()).level == "good"
    registered = {"nvidia.com/gpu": ["GPU-1"], "aliyun.com/gpu-mem": ["a"], "intel.com/nic": ["b"]}
    data = {"PodDeviceEntries": [], "RegisteredDevices": {**registered, "hami.io/gpu": None}}
    path = tmp_path / machine.DEVICE_PLUGINS / machine.CHECKPOINT
    put(path, json.dumps({"Data": data, "Checksum": 1}))
    found = machine.other_plugins(tmp_path, ("aliyun.com/gpu-mem",))
    assert (found.level, found.text) == ("advice", "another device plugin serves nvidia.com/gpu")
    put(path, "{")
    assert "not known" in machine.other_plugins(tmp_path, ()).text


def test_containers_that_see_gpus_without_a_share(tmp_path: Path) -> None:
    process(tmp_path, 11, UID, "nvidiactl", "nvidia0")
    process(tmp_path, 12, OTHER, "null", "nvidiactl")
    put(tmp_path / "13" / "cgroup", "0::/system.slice/x.service\n")
    put(tmp_path / "13" / "root" / "dev" / "nvidia0")
    pods = {UID: MachinePod("ml/train", may_see=True), OTHER: MachinePod("ml/web", may_see=False)}
    found = machine.without_share(tmp_path, pods)
    assert (found.level, found.text) == ("good", "1 pods see GPUs, each with a share or exempt")
    process(tmp_path, 14, OTHER, "nvidia1")  # the container was looked at by its first process
    assert machine.without_share(tmp_path, pods).level == "good"
    pods[UID] = MachinePod("ml/train", may_see=False)
    found = machine.without_share(tmp_path, pods)
    assert (found.level, found.text) == ("wrong", "pods see GPUs without a share: ml/train")
    assert UID in machine.without_share(tmp_path, {}).text
    assert machine.without_share(tmp_path, None).level == "advice"


def test_containers_that_may_not_be_looked_into_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(tmp_path, 11, UID, "null")
    listed = Path.iterdir

    def refused(path: Path) -> object:
        if path.name == "dev":
            raise PermissionError(path)
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    found = machine.without_share(tmp_path, {})
    assert (found.level, found.text) == ("advice", "1 containers could not be checked")
