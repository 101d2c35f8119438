"""Kubernetes quantities (`100m`, `2Gi`, `1e3`) as exact integers."""

import re
from decimal import ROUND_CEILING, Decimal

from weft.model.errors import BadInputError

_QUANTITY = re.compile(
    r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i))?$", re.ASCII
)
_SUFFIX = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    None: Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


_PLAIN = re.compile(r"(\d{1,15})(m|k|M|G|T|P|[KMGTP]i)?", re.ASCII)
_TIMES = {suffix: int(value) for suffix, value in _SUFFIX.items() if value >= 1}
"""Most quantities are a number and one of these: whole numbers, without the long way round."""


def _whole(text: str | int | float, per: int) -> int | None:
    """So many parts of which `per` are one, rounded up; None where the long way tells."""
    if type(text) is int and 0 <= text < 10**15:
        return text * per
    match = _PLAIN.fullmatch(text) if type(text) is str else None
    if match is None:
        return None
    number, suffix = match.groups()
    if suffix == "m":
        return -(-int(number) * per // 1000)
    return int(number) * _TIMES[suffix] * per


def _decimal(text: str | int | float, where: str) -> Decimal:
    match = _QUANTITY.match(str(text).strip()) if not isinstance(text, bool) else None
    if match is None:
        raise BadInputError(
            where, f"{text!r} is not a Kubernetes quantity; write a number such as 2, 500m or 4Gi"
        )
    number, exponent, suffix = match.groups()
    if len(number) > 40 or (exponent and (len(exponent) > 4 or abs(int(exponent[1:])) > 40)):
        raise BadInputError(where, f"{str(text)[:40]!r} is out of all proportion for a quantity")
    return Decimal(number + (exponent or "")) * _SUFFIX[suffix]


def parse_quantity(text: str | int | float, where: str = "") -> int:
    """The quantity in its base unit, rounded up to a whole number as Kubernetes does.

    Raises `BadInputError` naming `where` for text that is no quantity, or is negative.
    """
    if (whole := _whole(text, 1)) is not None:
        return whole
    value = _decimal(text, where)
    if value < 0:
        raise BadInputError(where, f"{text!r} is negative; write 0 or more")
    return int(value.to_integral_value(ROUND_CEILING))


def parse_cpu_milli(text: str | int | float, where: str = "") -> int:
    """A CPU quantity in thousandths of a core, rounded up."""
    if (whole := _whole(text, 1000)) is not None:
        return whole
    value = _decimal(text, where) * 1000
    if value < 0:
        raise BadInputError(where, f"{text!r} is negative; write 0 or more")
    return int(value.to_integral_value(ROUND_CEILING))
