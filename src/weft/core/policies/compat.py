"""The option `compat`: `sane` (the default), or `exact` to reproduce the original with its
flaws."""

from typing import Literal

from weft.model import BadInputError

Compat = Literal["sane", "exact"]


def is_exact(policy: str, compat: str) -> bool:
    """Return True if `compat` is exact, so that `policy` reproduces its original; raise
    `BadInputError` for an unknown value."""
    if compat not in {"sane", "exact"}:
        raise BadInputError(
            f"policy {policy}, option compat", f"{compat!r} is unknown; write sane or exact"
        )
    return compat == "exact"
