"""The hash chain of a decisions file: each line's last field is a hash of it and of those before.

    line 1 ──▶ blake2b(line 1) ──▶ blake2b(that + line 2) ──▶ … ──▶ the end record

A line that was changed, lost, doubled or moved breaks the chain where it stands, and a file without
its end record was cut off, or its process ended before it. This finds damage; who can write the
whole file anew can also chain it anew.
"""

from hashlib import blake2b

FIELD = b',"chain":"'
_HEX = 32
_TAIL = len(FIELD) + _HEX + len(b'"}\n')


class Chain:
    """Seals the lines of one file, in their order; `last` and `lines` can be kept and set back."""

    __slots__ = ("last", "lines")

    def __init__(self) -> None:
        self.last, self.lines = b"", 0

    def sealed(self, line: bytes) -> bytes:
        """The encoded object, with the field `chain` and a newline."""
        body = line[:-1]  # without its closing brace
        self.last = linked(self.last, body)
        self.lines += 1
        return b"".join((body, FIELD, self.last, b'"}\n'))


class ChainCheck:
    """Checks the lines of one file, in their order."""

    def __init__(self) -> None:
        self.lines = 0
        self._last = self._line = b""

    def follows(self, line: bytes) -> bool:
        """Take the next line; False if it is not the one that was written there."""
        link = linked(self._last, line[:-_TAIL])
        if line[-_TAIL:] != FIELD + link + b'"}\n':
            return False
        self._last, self._line = link, line
        self.lines += 1
        return True

    def what_is_wrong(self, line: bytes, following: bytes = b"") -> str:
        """About the line that was refused; `following` is the one behind it."""
        before = self.lines
        if line == self._line:
            return f"stands twice: it is line {before} again"
        if following[-_TAIL:] == FIELD + linked(self._last, following[:-_TAIL]) + b'"}\n':
            return f"does not belong here: line {before + 2} follows line {before}"
        if not before or not is_chained(line):
            return "was changed"
        return f"does not follow line {before}: it was changed, or a line between them is missing"


def sealed_size(line: bytes) -> int:
    """How many bytes the encoded object takes once it is sealed."""
    return len(line) - 1 + _TAIL


def linked(last: bytes, body: bytes) -> bytes:
    """The hash of a line's body and of all before, 32 hexadecimal digits."""
    link = blake2b(last, digest_size=_HEX // 2)
    link.update(body)
    return link.hexdigest().encode()


def is_chained(line: bytes) -> bool:
    """True if the line ends with the field."""
    return line[-_TAIL:].startswith(FIELD)
