"""Nothing that a pod or a PodGroup says of a group raises; each mistake is one short warning."""

from random import Random
from typing import Any

import msgspec
import pytest
from manifests import pod
from msgspec import UNSET

from weft.dialects.group_objects import OBJECT_SYSTEMS, KubePodGroup, policy_of
from weft.dialects.groups import (
    GROUP_NAMES,
    JOB_SET,
    JOBS,
    LWS_INDEX,
    LWS_KEY,
    LWS_NAME,
    OLD_LEAST,
    OLD_NAME,
    POD_GROUP,
    READ_ANNOTATIONS,
    group_of,
)

LABELS = (
    POD_GROUP,
    OLD_NAME,
    OLD_LEAST,
    JOB_SET,
    LWS_NAME,
    LWS_INDEX,
    LWS_KEY,
    *JOBS,
)
TEXTS = (
    *("", "4", "+4", " 4", "-1", "0", "4.5", "0x4", "٤", "1e9", "9" * 30, "train", "owner", "none"),
    *(
        "x" * 300,
        "y" * 200_000,
        "\x00",
        "[]",
        '["a/b"]',
        "[1]",
        '{"a": 1}',
        "[" * 9_000,
        "10m",
        "1h",
    ),
)
VALUES: tuple[Any, ...] = (
    *(None, 0, 1, -1, 4, 2**31, 2**63, 4.5, True, "4", "", "x" * 5_000, [], [4], {}, {"all": {}}),
    *({"single": {}, "all": {}}, {"a": {"b": []}}, "PodGroup", "Pod"),
)


def fits(warnings: tuple[str, ...]) -> bool:
    return len(set(warnings)) == len(warnings) and all(len(each) < 600 for each in warnings)


@pytest.mark.parametrize("seed", range(20))
def test_no_pod_breaks_the_reading_of_its_group(seed: int) -> None:
    dice = Random(seed)
    for _ in range(200):
        odds = dice.choice([0.05, 0.3, 0.9])
        said = {
            "labels": {key: dice.choice(TEXTS) for key in LABELS if dice.random() < odds},
            "annotations": {
                key: dice.choice(TEXTS) for key in READ_ANNOTATIONS if dice.random() < odds
            },
        }
        if dice.random() < odds:
            said["schedulingGroup"] = {"podGroupName": dice.choice(TEXTS)}
        found = group_of(
            pod(**said), owner=dice.choice(["", "Job/x"]), by_namespace=dice.random() < odds
        )
        assert fits(found.warnings), found.warnings
        if found.gang is not UNSET:
            assert 0 < len(found.gang.name) <= 253
            assert 0 <= found.gang.least < 10**9
            assert found.gang.least or found.object_of or found.warnings, "it says why it waits"


@pytest.mark.parametrize("seed", range(20))
def test_no_pod_group_breaks_its_reading(seed: int) -> None:
    dice = Random(seed)
    for _ in range(200):
        spec: dict[str, Any] = {
            field: dice.choice(VALUES)
            for field in ("minMember", "disruptionMode")
            if dice.random() < 0.7
        }
        if dice.random() < 0.5:
            spec["minTaskMember"] = {text: dice.choice(VALUES) for text in dice.sample(TEXTS, 3)}
        if dice.random() < 0.5:
            spec["schedulingPolicy"] = {"gang": {"minCount": dice.choice(VALUES)}}
        topology = [{"key": dice.choice(TEXTS)} for _ in range(dice.choice([0, 1, 3]))]
        spec["schedulingConstraints"] = {"topology": topology}
        meta = {"name": "g", "namespace": "d", "creationTimestamp": dice.choice(TEXTS)}
        group = msgspec.convert({"metadata": meta, "spec": spec}, KubePodGroup)
        found = policy_of(dice.choice(OBJECT_SYSTEMS), group)
        assert fits(found.warnings), found.warnings
        assert 0 <= found.least < 2**31
        assert found.least or found.warnings, "it says why its pods wait"
        assert all(len(task) <= 253 and least >= 0 for task, least in found.least_by_task)


def test_both_of_volcanos_annotations_are_read() -> None:
    for key in GROUP_NAMES:
        assert group_of(pod(annotations={key: "train"})).gang
