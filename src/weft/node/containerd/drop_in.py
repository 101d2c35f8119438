"""The drop-in file that makes containerd fail closed: where it belongs, writing and removing it.

config.toml   imports = ["/etc/containerd/conf.d/*.toml"]
                 └─▶ …/conf.d/99-weft.toml    NRI on, its validator on; nothing else

Since 2.2, the first version with a validator, containerd merges drop-ins key by key; older versions
replace whole sections, but have nothing to configure here. A drop-in is not migrated to the main
file's `version`, so it uses the same one.

The file's first lines say who wrote it, with a digest: a file that was edited since is neither
changed nor removed.
"""

import fnmatch
import glob
import hashlib
import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from weft.model import WeftError
from weft.model.runtimes import CONTAINERD_LINES

NAME = "99-weft.toml"
_NRI = "io.containerd.nri.v1.nri"
_NRI_NAMES = ("nri", _NRI)  # spellings in `disabled_plugins`
_VERSIONS = (2, 3)
_HEAD = "# Written by weft agent --configure-runtime; weft agent --cleanup removes it.\n"
_DIGEST = "# sha256 of the lines below: "
_MADE = "# The folder was made for it.\n"
_IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]'


class RuntimeConfigError(WeftError):
    """The runtime's configuration prevents the change; the message says what to do."""


class DropIn(msgspec.Struct, frozen=True):
    """The file's `path` and its content, `text`."""

    path: Path
    text: str

    def written(self) -> bool:
        """Return True if the file exists unchanged; `RuntimeConfigError` if it was edited or was
        not written by the agent."""
        try:
            there = self.path.read_text()
        except FileNotFoundError:
            return False
        except (OSError, UnicodeDecodeError) as error:
            raise RuntimeConfigError(f"{self.path} can't be read: {_said(error)}") from None
        head, mark, rest = there.partition(_DIGEST)
        told, _, text = rest.partition("\n")
        if not head.startswith(_HEAD) or not mark or told != _digest(text):
            text = "was edited since the agent wrote it, so it is kept; move it away, or restore it"
            raise RuntimeConfigError(f"{self.path} {text}")
        return True

    def write(self) -> None:
        """Write the file atomically; `RuntimeConfigError` says why that failed."""
        folder = self.path.parent
        made = _MADE in self.path.read_text() if self.written() else not folder.exists()
        draft = folder / f".{NAME}.new"  # matches no import pattern
        try:
            folder.mkdir(exist_ok=True)
            with draft.open("w") as file:
                file.write(_HEAD + _MADE * made + f"{_DIGEST}{_digest(self.text)}\n{self.text}")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path)
        except OSError as error:
            self._forget(draft, made)
            text = f"{self.path} can't be written: {_said(error)}"
            raise RuntimeConfigError(f"{text}; mount {folder.parent} writable") from None

    def remove(self) -> bool:
        """Remove the file; return False if it did not exist. `RuntimeConfigError` if it was edited
        or cannot be removed."""
        if not self.written():
            return False
        try:
            made = _MADE in self.path.read_text()
            self.path.unlink()
        except OSError as error:
            raise RuntimeConfigError(f"{self.path} can't be removed: {_said(error)}") from None
        self._forget(None, made)
        return True

    def _forget(self, draft: Path | None, made: bool) -> None:
        try:
            if draft is not None:
                draft.unlink(missing_ok=True)
            if made:
                self.path.parent.rmdir()
        except OSError:
            pass  # the folder has other files now, or cannot be written


def drop_in_of(config: Path) -> DropIn:
    """Return the drop-in for a containerd that reads `config`; `RuntimeConfigError` if the
    configuration imports no folder, or another file overrides the drop-in."""
    main = _read(config)
    version = main.get("version", 1)
    if version not in _VERSIONS:
        text = f"{config} is of version {version}: `containerd config migrate` makes it version 3"
        raise RuntimeConfigError(text)
    patterns = main.get("imports", [])
    if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
        raise RuntimeConfigError(f"{config}: imports is not a list of paths")
    for pattern in (_absolute(config, each) for each in patterns):
        folder, files = Path(pattern).parent, Path(pattern).name
        if fnmatch.fnmatchcase(NAME, files) and not glob.has_magic(str(folder)):
            _check_others(config, [_absolute(config, each) for each in patterns], folder / NAME)
            return DropIn(folder / NAME, f"version = {version}\n{CONTAINERD_LINES}")
    raise RuntimeConfigError(f"{config} imports no folder of drop-ins: add {_IMPORTS} at its top")


def digest_of(config: Path) -> str:
    """Return a digest of the file; "" if it cannot be read."""
    try:
        return hashlib.sha256(config.read_bytes()).hexdigest()
    except OSError:
        return ""


def _check_others(config: Path, patterns: list[str], ours: Path) -> None:
    """Raise `RuntimeConfigError` if a file names NRI in disabled_plugins, or if a file that
    containerd reads after our drop-in (`ours`) disables NRI or its default validator."""
    files = [Path(each) for pattern in patterns for each in sorted(glob.glob(pattern))]
    later = False
    for file in (config, *files):
        if file == ours:
            continue
        read = _read(file)
        if any(name in read.get("disabled_plugins", []) for name in _NRI_NAMES):
            raise RuntimeConfigError(f"{file}: disabled_plugins names NRI: remove it")
        section = read.get("plugins", {}).get(_NRI, {})
        later = later or (file.parent == ours.parent and file.name > NAME)
        off = section.get("disable") is True
        if later and (off or section.get("default_validator", {}).get("enable") is False):
            raise RuntimeConfigError(f"{file} is read last and disables NRI: remove that setting")


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        text = f"there is no {file}: write it with `containerd config default`, or mount its folder"
        raise RuntimeConfigError(f"{text} here") from None
    except OSError as error:
        raise RuntimeConfigError(f"{file} can't be read: {_said(error)}") from None
    except ValueError as error:  # from TOML or UTF-8
        text = f"{file} can't be parsed ({error}): containerd would not start with it; fix it"
        raise RuntimeConfigError(text) from None


def _absolute(config: Path, pattern: str) -> str:
    return os.path.normpath(config.parent / pattern)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _said(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
