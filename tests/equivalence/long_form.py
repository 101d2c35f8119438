"""The short form of the tests (`make test`) and the long one (`make test-long`)."""

import os
from typing import TypeVar

Chosen = TypeVar("Chosen")
LONG = os.environ.get("WEFT_TEST_LONG") == "1"


def few_or_many(few: Chosen, many: Chosen) -> Chosen:
    """Examples, seeds or cases to draw: `few` in the short form, `many` in the long one."""
    return many if LONG else few


AUDITED_EVERY = few_or_many(3, 1)
"""Random worlds lay the ledger out anew after so many events, and compare: most of their time."""
