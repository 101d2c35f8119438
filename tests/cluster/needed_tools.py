"""A tool that a test needs is not on this machine: it is left out, visibly; in CI it fails."""

import os
import sys
from typing import NoReturn

import pytest

NO_PROMETHEUS = "no prometheus command: apt-get install -y prometheus"


def lacking(text: str) -> NoReturn:
    """Leave the test out; `text` says what does not exist, and what installs it."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must run this test: {text}", pytrace=False)
    sys.__stderr__.write(f"SKIPPED {text}\n")  # type: ignore[union-attr]
    pytest.skip(text)
