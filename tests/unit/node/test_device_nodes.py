"""Device nodes as the machine has them; CDI names where the node describes all of the devices."""

import json
import os
from pathlib import Path

import pytest

from weft.model import Gpu
from weft.node.agent.device_nodes import CdiSpecs, MissingNodeError, device_node
from weft.node.devices.reader import GpuDevice


def gpu(index: int) -> GpuDevice:
    return GpuDevice(Gpu(index, 100, "A100", f"GPU-{index}"))


def spec(
    folder: Path, *names: str, kind: str = "nvidia.com/gpu", file: str = "nvidia.json"
) -> Path:
    path = folder / file
    document = {"cdiVersion": "0.6.0", "kind": kind, "devices": [{"name": n} for n in names]}
    path.write_text(json.dumps(document))
    return path


def test_a_device_node_has_its_numbers() -> None:
    found = os.stat("/dev/null")
    node = device_node("/dev/null")
    assert (node.type, node.major, node.minor, node.mode) == ("c", 1, 3, found.st_mode & 0o7777)


def test_what_is_no_device_node_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingNodeError, match="is not a device node"):
        device_node(str(tmp_path / "file"))
    with pytest.raises(MissingNodeError, match=r"/none: No such file"):
        device_node(str(tmp_path / "none"))


def test_names_are_by_uuid_then_by_index_and_for_all_or_none(tmp_path: Path) -> None:
    specs = CdiSpecs((tmp_path,), heeded=True)
    assert specs.names_of([gpu(0)]) == ()
    spec(tmp_path, "GPU-0", "0", "1", "all")
    assert specs.names_of([gpu(0), gpu(1)]) == ("nvidia.com/gpu=GPU-0", "nvidia.com/gpu=1")
    assert specs.names_of([gpu(0), gpu(2)]) == ()


def test_specifications_are_read_again_when_they_change(tmp_path: Path) -> None:
    specs = CdiSpecs((tmp_path, tmp_path / "none"), heeded=True)
    path = spec(tmp_path, "GPU-0")
    assert specs.names_of([gpu(0)])
    path.unlink()
    assert specs.names_of([gpu(0)]) == ()
    (tmp_path / "gpus.yaml").write_text("kind: nvidia.com/gpu\ndevices: [{name: GPU-0}]\n")
    assert specs.names_of([gpu(0)]) == ("nvidia.com/gpu=GPU-0",)


def test_a_damaged_specification_beside_takes_nothing_away(tmp_path: Path) -> None:
    specs = CdiSpecs((tmp_path,), heeded=True)
    spec(tmp_path, "GPU-0", file="good.json")
    (tmp_path / "damaged.json").write_text('{"kind": "nvidia.com/gpu", "devices": [{')
    (tmp_path / "pipe.json").symlink_to("/dev/zero")
    assert specs.names_of([gpu(0)]) == ("nvidia.com/gpu=GPU-0",)


def test_a_file_that_runtimes_do_not_read_names_nothing(tmp_path: Path) -> None:
    spec(tmp_path, "GPU-0", file="nvidia.yml")
    assert CdiSpecs((tmp_path,), heeded=True).names_of([gpu(0)]) == ()


def test_what_two_files_of_a_folder_name_is_left_to_device_nodes(tmp_path: Path) -> None:
    """A runtime resolves such a name to nothing; of two folders the later one counts."""
    etc, run = tmp_path / "etc", tmp_path / "run"
    etc.mkdir()
    run.mkdir()
    specs = CdiSpecs((etc, run), heeded=True)
    spec(etc, "GPU-0", "GPU-1")
    spec(run, "GPU-0", "GPU-1")
    assert specs.names_of([gpu(0)]) == ("nvidia.com/gpu=GPU-0",)
    again = spec(etc, "GPU-0", file="nvidia-again.yaml")
    assert specs.names_of([gpu(0)]) == ()
    assert specs.names_of([gpu(1)]) == ("nvidia.com/gpu=GPU-1",)
    again.unlink()
    assert specs.names_of([gpu(0)]) == ("nvidia.com/gpu=GPU-0",)
    spec(run, "GPU-0", "GPU-0")
    assert specs.names_of([gpu(1)]) == ("nvidia.com/gpu=GPU-1",)


def device_nodes(*paths: str) -> dict[str, object]:
    return {"containerEdits": {"deviceNodes": [{"path": path} for path in paths]}}


@pytest.mark.parametrize(
    ("own", "of_device", "of_file", "used"),
    [
        (("/dev/nvidia0",), ("/dev/nvidia0", "/dev/dri/card1"), ("/dev/nvidiactl",), True),
        (("/dev/nvidia0",), ("/dev/nvidia1",), (), False),
        (("/dev/nvidia0",), ("/dev/nvidia0",), ("/dev/nvidia1",), False),
        (("/dev/nvidia0",), (), ("/dev/nvidiactl",), False),
        (("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3"), ("/dev/nvidia0",), (), False),
        (
            ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3"),
            ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3"),
            ("/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap3"),
            False,
        ),
        (("/dev/nvidia0",), ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3"), (), True),
    ],
    ids=["own", "other", "one-more", "none", "whole", "other-instance", "instance-not-known"],
)
def test_a_name_is_used_only_where_it_brings_the_gpu_itself(
    tmp_path: Path,
    own: tuple[str, ...],
    of_device: tuple[str, ...],
    of_file: tuple[str, ...],
    used: bool,
) -> None:
    """A specification may be older than the cards, or number them in another way."""
    device = {"name": "GPU-0", **device_nodes(*of_device)}
    text = {"kind": "nvidia.com/gpu", "devices": [device], **device_nodes(*of_file)}
    (tmp_path / "nvidia.json").write_text(json.dumps(text))
    asked = GpuDevice(Gpu(0, 100, "A100", "GPU-0"), paths=own)
    assert CdiSpecs((tmp_path,), heeded=True).names_of([asked]) == (
        ("nvidia.com/gpu=GPU-0",) if used else ()
    )


def test_files_of_single_containers_are_not_read(tmp_path: Path) -> None:
    specs = CdiSpecs((tmp_path,), heeded=True, ignored="weft-delivery-")
    spec(tmp_path, "GPU-0", file="weft-delivery-1.json")
    assert specs.names_of([gpu(0)]) == ()


def test_there_are_no_names_while_the_runtime_does_not_heed_them(tmp_path: Path) -> None:
    specs = CdiSpecs((tmp_path,), heeded=False)
    spec(tmp_path, "GPU-0")
    assert specs.names_of([gpu(0)]) == ()
    specs.heeded = True
    assert specs.names_of([gpu(0)]) == ("nvidia.com/gpu=GPU-0",)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"kind": "nvidia.com/gpu", "devices": 3}', '{"kind": "other.com/gpu"}']
)
def test_a_broken_or_foreign_specification_names_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.json").write_text(text)
    assert CdiSpecs((tmp_path,), heeded=True).names_of([gpu(0)]) == ()
