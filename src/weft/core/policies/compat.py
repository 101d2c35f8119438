"""The option `compat`: `sane` (the default), or `exact` for what the original does, with flaws."""

from collections.abc import Mapping
from typing import Literal

from weft.model import BadInputError

Compat = Literal["sane", "exact"]

SYSTEM_OF: Mapping[str, str] = {
    "elastic-binpack": "elastic",
    "alnair-cost-saving": "alnair",
    "alnair-high-performance": "alnair",
    "genius": "genius",
    "coscheml": "coscheml",
}
"""Whose policy it is, by name, of all that have the option."""


def is_exact(policy: str, compat: str) -> bool:
    """True if `policy` is to reproduce its original; `BadInputError` for an unknown value."""
    if compat not in {"sane", "exact"}:
        raise BadInputError(
            f"policy {policy}, option compat", f"{compat!r} is unknown; write sane or exact"
        )
    return compat == "exact"
