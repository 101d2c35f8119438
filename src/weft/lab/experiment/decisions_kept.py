"""A cell's decisions file while the cell runs: in memory, then packed."""

import gzip
import io

from weft.core.record import DecisionsWriter

LEVEL = 1
"""gzip's level: 9 takes longer for a fifth less."""


class DecisionsKept:
    """Takes the decisions of one run, if `wanted`."""

    def __init__(self, *, wanted: bool) -> None:
        self._lines = io.BytesIO()
        self.writer = DecisionsWriter(self._lines) if wanted else None
        """None: nobody wants them."""

    def packed(self) -> bytes:
        """The whole file, gzipped, the same for the same decisions; empty if nobody wrote any."""
        if self.writer is None or not self._lines.tell():
            return b""
        self.writer.close()
        return gzip.compress(self._lines.getvalue(), LEVEL, mtime=0)
