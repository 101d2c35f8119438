"""The findings of a container about itself: the lines that its image's `/bin/tell` has written."""

from dataclasses import dataclass
from pathlib import Path

from machine_state import DEVICE_PREFIX


@dataclass(frozen=True)
class Device:
    """A device node: its numbers, and whether the container's cgroup lets it be opened."""

    major: int
    minor: int
    mode: str
    may_open: bool


@dataclass(frozen=True)
class Inside:
    """Environment, device nodes by path, and what is mounted (source by mount point)."""

    env: dict[str, str]
    devices: dict[str, Device]
    mounts: dict[str, str]

    def env_of(self, *prefixes: str) -> dict[str, str]:
        """The variables whose names begin like this."""
        return {name: value for name, value in self.env.items() if name.startswith(prefixes)}

    def gpus(self) -> dict[str, Device]:
        """The device nodes of played GPUs."""
        return {path: one for path, one in self.devices.items() if path.startswith(DEVICE_PREFIX)}


def read_log(path: Path) -> Inside:
    """A log as containerd writes it: time, stream, F or P, text. All must have been told."""
    env: dict[str, str] = {}
    devices, mounts, told = {}, {}, False
    for line in path.read_text().splitlines():
        kind, _, rest = line.split(" ", 3)[3].partition(" ")
        if kind == "env":
            name, _, value = rest.partition("=")
            if env.setdefault(name, value) != value:
                raise ValueError(f"{name} is listed twice, as {env[name]} and {value}: {path}")
        elif kind == "device":
            where, major, minor, mode, opens = rest.split()
            devices[where] = Device(int(major, 16), int(minor, 16), mode, opens == "yes")
        elif kind == "mount":
            words = rest.split()
            mounts[words[4]] = words[3]
        told = told or kind == "told"
    if not told:
        raise ValueError(f"the container has not told all: {path}")
    return Inside(env, devices, mounts)
