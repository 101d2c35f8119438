"""CDI specifications of single containers: a name means nothing until its file is written.

The kubelet passes a CDI name on to the container runtime, which resolves it when it creates the
container, and creates no container if it cannot resolve the name. So a share can be decided after
Allocate, and a container without its share does not start. A name is never reused for a second
container, so that whatever a runtime caches stays valid.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from weft.files.writing import write_whole
from weft.model.annotations import DELIVERY
from weft.node.agent.container_grant import ContainerGrant

FOLDER = Path("/var/run/cdi")
KIND = DELIVERY
_VERSION = "0.5.0"
FILE_PREFIX = "weft-delivery-"
_SUFFIX = ".json"
_KEEP_S = 60.0
_LOOK_S = 10.0


class CdiFiles:
    """The files in one of the runtime's folders for CDI specifications. `run` removes each file
    after a minute, which suits names that are resolved only once, while a container is created."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    def new_name(self) -> str:
        """Return a new qualified name; its file is not written yet."""
        return f"{KIND}={secrets.token_hex(12)}"

    def write(self, name: str, grant: ContainerGrant) -> None:
        """Write the file, so that the name means this grant from now on; `OSError` if that
        fails."""
        path, text = self._path(name), specification(name, grant)
        self._folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if path.read_bytes() == text:
                return  # avoid a change, as the runtime reads every changed file
        write_whole(path, text)

    def forget_all_but(self, names: Collection[str]) -> int:
        """Remove the files of all names not in `names`, if older than a minute; return how many
        were removed."""
        file_names = {self._path(name).name for name in names}
        removed = 0
        for path in self._folder.glob(f"{FILE_PREFIX}*{_SUFFIX}"):
            if path.name not in file_names and time.time() - path.stat().st_mtime > _KEEP_S:
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    async def run(self) -> None:
        """Remove each file a minute after it was written, until cancelled; then remove all, so that
        no file outlives the agent."""
        try:
            while True:
                self.forget_all_but(())
                await asyncio.sleep(_LOOK_S)
        finally:
            self.forget_all()

    def forget_all(self) -> None:
        """Remove the files of all names."""
        for path in self._folder.glob(f"{FILE_PREFIX}*{_SUFFIX}"):
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{FILE_PREFIX}{name.partition('=')[2]}{_SUFFIX}"


def own_names(names: Iterable[str]) -> list[str]:
    """Return the CDI names that Weft made."""
    return [name for name in names if name.startswith(f"{KIND}=")]


def specification(name: str, grant: ContainerGrant) -> bytes:
    """Return the CDI specification of one device, as JSON."""
    edits: dict[str, object] = {"env": [f"{key}={value}" for key, value in grant.env.items()]}
    if grant.paths:
        edits["deviceNodes"] = [{"path": path} for path in grant.paths]
    if grant.mounts:
        edits["mounts"] = [
            {
                "hostPath": mount.host,
                "containerPath": mount.container,
                "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "rbind"],
            }
            for mount in grant.mounts
        ]
    device = {"name": name.partition("=")[2], "containerEdits": edits}
    return msgspec.json.encode({"cdiVersion": _VERSION, "kind": KIND, "devices": [device]})
