"""Writes files atomically: at any moment the old file or the new one is there, never a part."""

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from weft.model import BadInputError

_SCRAP = re.compile(r"[0-9a-f]{8}|[0-9]{1,7}")
"""Suffixes of temporary files; decimal ones are from earlier versions."""

ANYWHERE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.ENAMETOOLONG})
"""Error numbers (errno) that any write to a file may raise, through no fault of Weft's code."""

_ELSEWHERE = "choose a path that you may write to"
_REMEDIES = {
    errno.ENOSPC: "free space, or choose another disk",
    errno.EDQUOT: "free space, or choose another disk",
    errno.EFBIG: "raise the limit on the size of files, or name another disk",
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.EROFS: "choose a path on another disk",
    errno.EISDIR: "name a file",
    errno.ENOENT: "create its folder, or choose another path",
    errno.ENOTDIR: "its parent is a file, not a folder; choose another path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "its symbolic links form a cycle; choose another path",
}


def unwritten(path: Path | str, error: OSError) -> BadInputError:
    """Return an error that says the file cannot be written, why, and what may help."""
    return BadInputError(str(path), f"cannot be written: {what_may_help(error)}")


def what_may_help(error: OSError) -> str:
    """Return the operating system's error text, with advice if there is any."""
    said = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{said}; {remedy}" if remedy else said


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file next to `path` that replaces `path` when the block ends; `OSError` if
    that fails.

    The temporary file's name is random, so that no symbolic link can be placed there beforehand,
    and it gets the permissions of the replaced file. If `path` is a pipe or a device, it is written
    directly, as it cannot be replaced.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    beside, handle = _new_beside(path)
    try:
        with os.fdopen(handle, "wb") as file:
            mode = _mode(path)
            if mode is not None:
                os.fchmod(handle, mode)
            yield file
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def write_whole(path: Path, body: bytes) -> None:
    """Replace the file's content atomically, as `replacing` does."""
    with replacing(path) as file:
        file.write(body)


def remove_scraps(path: Path) -> None:
    """Remove temporary files of writers that were killed; no other process may be writing this
    file."""
    for scrap in path.parent.glob(f".{path.name}.*"):
        if _SCRAP.fullmatch(scrap.suffix[1:]):
            scrap.unlink(missing_ok=True)


def _new_beside(path: Path) -> tuple[Path, int]:
    """Create and open a new temporary file with the default permissions of new files."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with contextlib.suppress(FileExistsError):
            return beside, os.open(beside, flags, 0o666)


def _mode(path: Path) -> int | None:
    """Return the permission bits of a regular file; None if the path does not exist or is no
    regular file."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_mode & 0o777 if stat.S_ISREG(found.st_mode) else None
