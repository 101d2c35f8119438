"""The chart's scheduler has the rights that its profiles need, and no others."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from helm import find_or_build, render

IMAGE = "--set=image.repository=registry.example/weft-gpu"
SCHEDULER = "weft-scheduler"
PROFILE: dict[str, Any] = {"schedulerName": "weft", "policies": [{"name": "fgd"}]}
EXTENDED = {"extender": {"enabled": True, "certificates": "generate"}}
VIA_EXTENDER = {**PROFILE, "schedulerName": "packed", "via": "extender"}


@pytest.mark.parametrize(
    ("values", "ends", "knows_budgets"),
    [
        ({}, True, True),
        ({"profiles": [PROFILE]}, True, True),
        ({"profiles": [{**PROFILE, "preempt": False}]}, False, False),
        ({"configuration": {"profiles": [{**PROFILE, "preempt": False}]}}, False, False),
        ({"profiles": [VIA_EXTENDER], **EXTENDED}, False, True),
        ({"profiles": [{**PROFILE, "preempt": False}, VIA_EXTENDER], **EXTENDED}, False, True),
        ({"profiles": [{**VIA_EXTENDER, "preempt": False}, PROFILE], **EXTENDED}, True, True),
    ],
)
def test_the_scheduler_may_end_pods_only_where_a_profile_of_its_own_preempts(
    tmp_path: Path, values: dict[str, Any], ends: bool, knows_budgets: bool
) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump({**values, "admission": {"schedule": "never"}}))
    objects: Any = render(find_or_build(print), IMAGE, f"--values={path}")
    roles = [item for item in objects if item["kind"] == "ClusterRole"]
    (role,) = (item for item in roles if item["metadata"]["name"] == SCHEDULER)
    may = {(name, verb) for r in role["rules"] for name in r["resources"] for verb in r["verbs"]}
    assert (("pods", "delete") in may) == ends
    assert ({("poddisruptionbudgets", "list"), ("poddisruptionbudgets", "watch")} <= may) == (
        knows_budgets
    )
    assert ("pods/eviction", "create") in may, "of double bookings, whatever preempts"
