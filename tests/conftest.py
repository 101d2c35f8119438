"""What all tests share: Hypothesis' profile, and where the real traces lie."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("weft", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("weft-ci", settings.get_profile("weft"), derandomize=True)
settings.load_profile("weft-ci" if os.environ.get("CI") == "true" else "weft")

PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def weft_data() -> Path:
    """The directory with the published traces: WEFT_DATA, or ../shared/data beside the project."""
    told = os.environ.get("WEFT_DATA")
    path = Path(told) if told else PROJECT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"no trace data: {path} is no directory; set WEFT_DATA to where the data lies")
    return path
