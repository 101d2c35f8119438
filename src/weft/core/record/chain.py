"""Hash chain of a decisions file: each line ends with a hash of itself and of all lines before.

  line 1 ──▶ blake2b(line 1) ──▶ blake2b(that + line 2) ──▶ … ──▶ the end record

A line that was changed, lost, duplicated or moved breaks the chain at its place. A file without an
end record was truncated, or its process ended without closing it. The chain detects damage, not
forgery: anyone who can rewrite the whole file can also compute a new chain."""

from hashlib import blake2b

FIELD = b',"chain":"'
_HEX = 32
_TAIL = len(FIELD) + _HEX + len(b'"}\n')


class Chain:
    """Adds the chain field to the lines of one file, in order. A caller can save `last` and
    `lines`, and set them again to go back to that line."""

    __slots__ = ("last", "lines")

    def __init__(self) -> None:
        self.last, self.lines = b"", 0

    def sealed(self, line: bytes) -> bytes:
        """Return the encoded object with the field `chain` and a newline added."""
        body = line[:-1]  # without its closing brace
        self.last = linked(self.last, body)
        self.lines += 1
        return b"".join((body, FIELD, self.last, b'"}\n'))


class ChainCheck:
    """Checks the chain of one file's lines, in order."""

    def __init__(self) -> None:
        self.lines = 0
        self._last = self._line = b""

    def follows(self, line: bytes) -> bool:
        """Take the next line; return False if it is not the line that was written at this place."""
        link = linked(self._last, line[:-_TAIL])
        if line[-_TAIL:] != FIELD + link + b'"}\n':
            return False
        self._last, self._line = link, line
        self.lines += 1
        return True

    def what_is_wrong(self, line: bytes, following: bytes = b"") -> str:
        """Describe the damage of a line that `follows` refused; `following` is the line after
        it."""
        before = self.lines
        if line == self._line:
            return f"repeats line {before}"
        if following[-_TAIL:] == FIELD + linked(self._last, following[:-_TAIL]) + b'"}\n':
            return f"is out of order: line {before + 2} follows line {before}"
        if not before or not is_chained(line):
            return "was changed"
        return f"does not follow line {before}: it was changed, or a line between them is missing"


def sealed_size(line: bytes) -> int:
    """Return the size in bytes of an encoded object once the chain field is added."""
    return len(line) - 1 + _TAIL


def linked(last: bytes, body: bytes) -> bytes:
    """Hash a line's body together with the hash before it; 32 hexadecimal digits."""
    link = blake2b(last, digest_size=_HEX // 2)
    link.update(body)
    return link.hexdigest().encode()


def is_chained(line: bytes) -> bool:
    """Return True if the line ends with a chain field."""
    return line[-_TAIL:].startswith(FIELD)
