"""GPUs that a file plays, with device nodes that are there: no driver is behind them.

A container that may open one gets ENXIO; one that its cgroup keeps from it EPERM. So `inside` can
tell what a container was given from what it merely sees.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import yaml
from kube_api import Object
from machine_state import DEVICE_PREFIX

MODEL, MEMORY_MIB = "NVIDIA-GeForce-GTX-1070-Ti", 16_384
_MAJOR = 240  # the kernel leaves 240 to 254 to experiments
_SHARED_MINOR = 255
SHARED = f"{DEVICE_PREFIX}control"


class PlayedGpus:
    """`path` is for `weft agent --devices`; `write` again to change what it plays."""

    def __init__(self, folder: Path, count: int = 8, memory_mib: int = MEMORY_MIB) -> None:
        self.path = folder / "gpus.yaml"
        self.count, self.memory_mib = count, memory_mib
        for index in range(count):
            _make(self.device(index), index)
        _make(SHARED, _SHARED_MINOR)
        self.write()

    @staticmethod
    def device(index: int) -> str:
        """The device node of a GPU."""
        return f"{DEVICE_PREFIX}gpu{index}"

    def devices_of(self, indexes: Sequence[int]) -> set[str]:
        """All device nodes that a container with these GPUs is given."""
        return {*map(self.device, indexes), SHARED} if indexes else set()

    def write(self, *, processes: Sequence[Object] = ()) -> None:
        """The file anew."""
        cards = {
            "model": MODEL,
            "memoryMiB": self.memory_mib,
            "count": self.count,
            "minor": 0,
            "paths": [self.device(0).replace("gpu0", "gpu{minor}")],
            "use": [{"seconds": 60, "values": {"sm_active_ratio": 0.5}}],
        }
        whole = {
            "apiVersion": "weft.dev/v1",
            "kind": "FakeDevices",
            "sharedPaths": [SHARED],
            "gpus": [cards],
            "processes": list(processes),
        }
        partial = self.path.with_suffix(".new")
        partial.write_text(yaml.safe_dump(whole))
        partial.replace(self.path)


def _make(path: str, minor: int) -> None:
    if not Path(path).exists():
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(_MAJOR, minor))
        Path(path).chmod(0o666)
