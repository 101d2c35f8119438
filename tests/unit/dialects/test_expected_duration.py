"""How long a pod says it takes."""

import pytest
from manifests import ask, parsed
from msgspec import UNSET

from weft.model.request import rounded_s

DURATION = "weft.dev/expected-duration"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3600", 3600),
        ("90s", 90),
        ("45m", 2700),
        ("2h30m", 9000),
        ("1d", 86400),
        (" 1d2h3m4s ", 93784),
    ],
)
@pytest.mark.parametrize("resource", ["weft.dev/gpu-memory", "aliyun.com/gpu-mem"])
def test_seconds_and_units(text: str, seconds: int, resource: str) -> None:
    request = parsed(ask(resource, 1), annotations={DURATION: text})
    assert request.shape.expected_s == rounded_s(seconds)
    assert not any(DURATION in note for note in request.warnings)


@pytest.mark.parametrize("text", ["", "0", "soon", "-3", "1.5h", "367d", "9" * 400, "٣"])
def test_what_is_no_duration_counts_for_nothing(text: str) -> None:
    request = parsed(ask("weft.dev/gpu-memory", 1), annotations={DURATION: text})
    assert request.shape.expected_s == 0
    assert any(DURATION in note for note in request.warnings) == bool(text)


def test_durations_lie_on_a_coarse_grid() -> None:
    grid = {rounded_s(seconds) for seconds in range(1, 366 * 86_400, 997)}
    assert len(grid) < 50, "few shapes"
    for seconds in (1, 2, 10, 100, 3600, 86_400):
        assert seconds / 2**0.25 - 0.5 <= rounded_s(seconds) <= seconds * 2**0.25 + 0.5
    assert rounded_s(0.2) == 1


@pytest.mark.parametrize("resource", ["weft.dev/gpu-memory", "aliyun.com/gpu-mem", "cpu"])
def test_active_deadline_seconds_bound_it_whatever_the_dialect(resource: str) -> None:
    assert parsed(ask(resource, 1), activeDeadlineSeconds=3_600).deadline_s == 3_600
    assert parsed(ask(resource, 1)).deadline_s is UNSET


@pytest.mark.parametrize("seconds", [0, -1, 2**31, 1 << 60])
def test_a_deadline_that_no_api_server_takes_bounds_nothing(seconds: int) -> None:
    request = parsed(ask("weft.dev/gpu-memory", 1), activeDeadlineSeconds=seconds)
    assert request.deadline_s is UNSET
