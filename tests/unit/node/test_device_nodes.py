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
    with pytest.raises(MissingNodeError, match="is no device node"):
        device_node(str(tmp_path / "file"))
    with pytest.raises(MissingNodeError, match=r"/none: No such file"):
        device_node(str(tmp_path / "none"))


def test_names_are_by_uuid_then_by_index_and_for_all_or_none(tmp_path: Path) -> None:
    specs = CdiSpecs((tmp_path,))
    assert specs.names_of([gpu(0)]) == ()
    spec(tmp_path, "GPU-0", "0", "1", "all")
    assert specs.names_of([gpu(0), gpu(1)]) == ("nvidia.com/gpu=GPU-0", "nvidia.com/gpu=1")
    assert specs.names_of([gpu(0), gpu(2)]) == ()


def test_specifications_are_read_again_when_they_change(tmp_path: Path) -> None:
    specs = CdiSpecs((tmp_path, tmp_path / "none"))
    path = spec(tmp_path, "GPU-0")
    assert specs.names_of([gpu(0)])
    path.unlink()
    assert specs.names_of([gpu(0)]) == ()
    (tmp_path / "gpus.yaml").write_text("kind: nvidia.com/gpu\ndevices: [{name: GPU-0}]\n")
    assert specs.names_of([gpu(0)]) == ("nvidia.com/gpu=GPU-0",)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"kind": "nvidia.com/gpu", "devices": 3}', '{"kind": "other.com/gpu"}']
)
def test_a_broken_or_foreign_specification_names_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.json").write_text(text)
    assert CdiSpecs((tmp_path,)).names_of([gpu(0)]) == ()
