"""Programs of a Go tool module, built once into the user's cache: `~/.cache/weft/cluster-tools`.

What is pinned in the module's go.mod and go.sum is what the cache's folder is named after, so
another release gets a folder of its own.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Say = Callable[[str], None]


class NoBinariesError(Exception):
    """There are no binaries and no way to make them; the text says what to install."""


@dataclass(frozen=True)
class GoTools:
    """A module's programs: by name the package of each, and which required module tells its
    version. `how_to` says what to do where they cannot be built."""

    folder: Path
    packages: Mapping[str, str]
    version_of: Mapping[str, str]
    link_flags: Callable[[Mapping[str, str]], Sequence[str]]
    how_to: str
    tags: tuple[str, ...] = ()

    def cache(self) -> Path:
        """The folder of what is built from the pinned modules, for this kind of machine."""
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        pins = re.sub(r"//.*", "", (self.folder / "go.mod").read_text()).split()
        recipe = [*pins, *sorted(self.versions().items()), sys.platform, platform.machine()]
        pinned = hashlib.sha256(
            repr([*recipe, *self.tags]).encode() + (self.folder / "go.sum").read_bytes()
        )
        return home / "weft" / "cluster-tools" / pinned.hexdigest()[:16] / "bin"

    def versions(self) -> dict[str, str]:
        """The pinned version of each program, as v1.2.3."""
        text = (self.folder / "go.mod").read_text()
        found = {}
        for name, module in self.version_of.items():
            match = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", text, re.MULTILINE)
            assert match, f"{self.folder}/go.mod requires no {module}"
            found[name] = match[1]
        return found

    def build(self, names: Sequence[str], say: Say) -> None:
        """Build these into the cache. Whoever comes second waits and builds nothing."""
        if shutil.which("go") is None:
            raise NoBinariesError(f"no {', '.join(names)} and no Go to build with: {self.how_to}")
        folder = self.cache()
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / ".lock", say):
            for name in names:
                if not (folder / name).exists():
                    self._build_one(name, folder / name, say)

    def _build_one(self, name: str, target: Path, say: Say) -> None:
        versions = self.versions()
        say(f"building {name} ({versions[name]}) into {target.parent}")
        partial = target.with_name(f".{name}.{os.getpid()}")
        flags = " ".join(["-s", "-w", *(f"-X {flag}" for flag in self.link_flags(versions))])
        command = [
            *("go", "build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false"),
            *(("-tags", ",".join(self.tags)) if self.tags else ()),
            *("-ldflags", flags, "-o", str(partial), self.packages[name]),
        ]
        began = time.monotonic()
        environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
        try:
            with subprocess.Popen(
                command, cwd=self.folder, env=environment, stderr=subprocess.PIPE, text=True
            ) as process:
                complaints = _follow(name, process, say)
            if process.returncode:
                raise NoBinariesError(
                    f"go could not build {name} (exit {process.returncode}):\n"
                    + "\n".join(complaints[-20:])
                    + f"\nTo do without: {self.how_to}"
                )
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        size = target.stat().st_size / 2**20
        say(f"built {name}: {size:.0f} MiB in {time.monotonic() - began:.0f} s")


@contextlib.contextmanager
def _alone(path: Path, say: Say) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is building: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _follow(name: str, process: "subprocess.Popen[str]", say: Say) -> list[str]:
    """Say how far it is every ten seconds; the lines that are no package's name come back."""
    began, state, over = time.monotonic(), {"packages": 0, "downloads": 0}, threading.Event()

    def tell() -> None:
        while not over.wait(10):
            took = time.monotonic() - began
            say(
                f"  {name}: {state['downloads']} modules fetched, "
                f"{state['packages']} packages compiled, {took:.0f} s"
            )

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    complaints = []
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("go: downloading "):
            state["downloads"] += 1
        elif re.fullmatch(r"[\w./~-]+\n", line):
            state["packages"] += 1
        else:
            complaints.append(line.rstrip())
    over.set()
    teller.join()
    return complaints
