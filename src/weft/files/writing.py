"""Files written whole or not at all: at any moment there is the old one or the new one."""

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
"""Endings of files in the making; decimal ones are of earlier versions."""

ANYWHERE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.ENAMETOOLONG})
"""Faults that any file may meet."""

_ELSEWHERE = "name one that you may write to"
_REMEDIES = {
    errno.ENOSPC: "make room, or name another disk",
    errno.EDQUOT: "make room, or name another disk",
    errno.EFBIG: "raise the limit on the size of files, or name another disk",
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.EROFS: "name a place on another disk",
    errno.EISDIR: "name a file",
    errno.ENOENT: "make its folder, or name another",
    errno.ENOTDIR: "what should be its folder is a file; name another",
    errno.ENAMETOOLONG: "name a shorter one",
    errno.ELOOP: "its links go in a circle; name another",
}


def unwritten(path: Path | str, error: OSError) -> BadInputError:
    """Says that this cannot be written, why, and what may help."""
    return BadInputError(str(path), f"cannot be written: {what_may_help(error)}")


def what_may_help(error: OSError) -> str:
    """The operating system's words for a fault of writing, with a remedy that fits."""
    said = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{said}; {remedy}" if remedy else said


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file beside this one to write to, which takes its place at the end. OSError.

    Nobody knows its name beforehand, so nobody can have put a link there that leads elsewhere. It
    gets the permissions of the file that it replaces. A pipe or a device is written to: nothing can
    be put in its place.
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
    """Replace the file with this, as `replacing` does."""
    with replacing(path) as file:
        file.write(body)


def remove_scraps(path: Path) -> None:
    """Remove what writers of this file that were killed left beside it; no other may be writing."""
    for scrap in path.parent.glob(f".{path.name}.*"):
        if _SCRAP.fullmatch(scrap.suffix[1:]):
            scrap.unlink(missing_ok=True)


def _new_beside(path: Path) -> tuple[Path, int]:
    """A file that was not there before, open for writing, as readable as new files are."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with contextlib.suppress(FileExistsError):
            return beside, os.open(beside, flags, 0o666)


def _mode(path: Path) -> int | None:
    """The permissions of a file; None where there is none, or a link."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_mode & 0o777 if stat.S_ISREG(found.st_mode) else None
