"""Numbers that people write, held to what a node can have at all (`model/ceilings.py`)."""

import re
from collections.abc import Callable

from weft.model import BadInputError, parse_cpu_milli, parse_quantity
from weft.model.ceilings import MOST_CPU_MILLI, MOST_MEMORY_MIB

Parse = Callable[[str | int | float, str], int]

_ABSURD = re.compile(r"^.{40}|[0-9][eE][+-]?[0-9]{3}", re.DOTALL)
_MOST_BYTES = MOST_MEMORY_MIB * 2**20


class InputBounds:
    """Refuses what is more than any node has; where that must be `held`, it is as much as that."""

    def __init__(self, *, held: bool = False) -> None:
        self.held = held

    def cpu_milli(self, text: str | int | float, where: str) -> int:
        """A CPU quantity in thousandths of a core."""
        return self.read(parse_cpu_milli, text, where, MOST_CPU_MILLI)

    def memory_bytes(self, text: str | int | float, where: str) -> int:
        """A size of host memory in bytes."""
        return self.read(parse_quantity, text, where, _MOST_BYTES)

    def read(self, parse: Parse, text: str | int | float, where: str, most: int) -> int:
        """`parse`, if it is no more than `most`."""
        # Looked at as text first: the number 1e999999 alone takes minutes to write out.
        if _ABSURD.search(str(text)) or (value := parse(text, where)) > most:
            if self.held:
                return most
            raise BadInputError(
                where, f"{str(text)[:40]!r} is larger than any node has; write {most:,} at most"
            )
        return value

    def total(self, value: int, most: int, unit: str, where: str = "spec.containers") -> int:
        """A sum of what was read one by one, if it is no more than `most`."""
        if value <= most or self.held:
            return min(value, most)
        raise BadInputError(
            where, f"{value:,} {unit} in all is larger than any node has; ask for {most:,} at most"
        )


REFUSED = InputBounds()
"""For pods that wait; what bound pods take must not be charged as nothing, and is held."""
