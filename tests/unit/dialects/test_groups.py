"""Groups as pods and PodGroups of each system say them."""

import json
from typing import Any

import msgspec
import pytest
from manifests import pod
from msgspec import UNSET

from weft.dialects.group_objects import GroupPolicy, KubePodGroup, policy_of
from weft.dialects.groups import GroupWords, group_of
from weft.model import Gang

NAME, LEAST = "gang.scheduling.koordinator.sh/name", "gang.scheduling.koordinator.sh/min-available"
KOORDINATOR = "gang.scheduling.koordinator.sh/"
OLD = "pod-group.scheduling.sigs.k8s.io/"
LABEL, ANNOTATION = "scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name"
OWNED, SIZE = {"weft.dev/gang": "owner"}, "weft.dev/gang-size"
JOB = {"batch.kubernetes.io/job-name": "train"}
SET = {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/global-replicas": "3", **JOB}
LWS = {
    "leaderworkerset.sigs.k8s.io/name": "vllm",
    "leaderworkerset.sigs.k8s.io/group-index": "2",
    "leaderworkerset.sigs.k8s.io/group-key": "f00",
}


def read(owner: str = "", by_namespace: bool = False, **said: Any) -> GroupWords:
    return group_of(pod(**said), owner=owner, by_namespace=by_namespace)


def gang(system: str, name: str = "train", least: int = 0, **more: Any) -> Gang:
    return Gang(system, "ns", name, least, **more)


@pytest.mark.parametrize(
    ("said", "expected", "object_of"),
    [
        (
            {"schedulingGroup": {"podGroupName": "train"}},
            gang("kubernetes"),
            "kubernetes",
        ),
        ({"labels": {LABEL: "train"}}, gang("scheduler-plugins"), "scheduler-plugins"),
        ({"annotations": {ANNOTATION: "train"}}, gang("volcano"), "volcano"),
        (
            {"annotations": {"scheduling.volcano.sh/group-name": "train"}},
            gang("volcano"),
            "volcano",
        ),
        (
            {"annotations": {ANNOTATION: "train", "volcano.sh/task-spec": "worker"}},
            gang("volcano", task="worker"),
            "volcano",
        ),
        ({"annotations": {NAME: "train", LEAST: "4"}}, gang("koordinator", least=4), ""),
        ({"annotations": {NAME: "train"}}, gang("koordinator"), "scheduler-plugins"),
        (
            {"labels": {f"{OLD}name": "train", f"{OLD}min-available": "4"}},
            gang("koordinator", least=4),
            "",
        ),
        (
            {"labels": SET, "annotations": {**OWNED, SIZE: "12"}},
            gang("owner", "JobSet/train", 12),
            "",
        ),
        (
            {
                "labels": LWS,
                "annotations": {**OWNED, "leaderworkerset.sigs.k8s.io/size": "5"},
            },
            gang("owner", "LeaderWorkerSet/vllm-2", 5),
            "",
        ),
        ({"labels": JOB, "annotations": {**OWNED, SIZE: "8"}}, gang("owner", "Job/train", 8), ""),
    ],
)
def test_a_pod_says_its_group_in_its_systems_words(said, expected, object_of):
    found = read(**said)
    assert found == GroupWords(expected, (), object_of)
    assert expected.key == f"{expected.system}:ns/{expected.name}"


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"labels": JOB},
        {"labels": SET},
        {"labels": {"app": "web"}, "annotations": {"note": "x"}},
        {"schedulingGroup": {}},
        {"schedulingGroup": {"podGroupName": ""}},
        {"labels": {LABEL: ""}},
        {"labels": SET, "annotations": {"weft.dev/gang": "none"}, "by_namespace": True},
        {"labels": JOB, "by_namespace": True},
        {"owner": "ReplicaSet/web", "by_namespace": True},
    ],
)
def test_a_pod_without_a_group_has_none_and_nothing_to_say_of_it(said):
    assert read(**said) == GroupWords()


def test_a_namespace_makes_groups_of_owners_whose_size_is_known():
    sized = {SIZE: "4"}
    assert read(labels=SET, annotations=sized, by_namespace=True).gang == gang(
        "owner", "JobSet/train", 4
    )
    assert read(labels=JOB, annotations=sized, by_namespace=True).gang == gang(
        "owner", "Job/train", 4
    )


@pytest.mark.parametrize("index", ["", "0", "1"])
@pytest.mark.parametrize("said", [{"annotations": OWNED}, {"by_namespace": True}])
def test_a_jobset_without_a_size_waits_as_its_pods_say_only_how_many_jobs_there_are(index, said):
    """The first pod of a Job (index 0) exists before the others do, and looks like an only one."""
    labels = {**SET, "batch.kubernetes.io/job-completion-index": index} if index else SET
    found = read(labels=labels, **said)
    assert found == GroupWords(gang("owner", "JobSet/train"), found.warnings)
    (warning,) = found.warnings
    assert "labels count its Jobs, which may have several pods each" in warning
    assert warning.endswith(f"write annotation {SIZE} on its pods")


def test_any_controllers_pods_are_a_group_by_their_own_word_and_size():
    found = read(owner="PyTorchJob/bert", annotations={**OWNED, SIZE: "2"})
    assert found == GroupWords(gang("owner", "PyTorchJob/bert", 2))


def test_how_long_koordinator_would_hold_places_is_read():
    said = {NAME: "train", LEAST: "4", f"{KOORDINATOR}waiting-time": "1h30m", KOORDINATOR + "x": ""}
    assert read(annotations=said).waits == "1h30m"


def test_of_two_systems_the_first_counts_and_both_are_named():
    found = read(labels={LABEL: "b"}, annotations={NAME: "c", LEAST: "2", ANNOTATION: "a"})
    assert found.gang == gang("scheduler-plugins", "b")
    (warning,) = found.warnings
    assert "volcano" in warning
    assert LABEL in warning
    assert NAME in warning
    assert "(label scheduling.x-k8s.io/pod-group)" in warning
    assert "the first counts" in warning


@pytest.mark.parametrize(
    ("said", "least", "words"),
    [
        ({"annotations": {NAME: "train", LEAST: "many"}}, 0, "'many', not a number"),
        ({"annotations": {NAME: "train", LEAST: "9" * 80}}, 0, "not a number"),
        ({"annotations": {NAME: "train", LEAST: "0"}}, 1, f"{LEAST} is 0"),
        ({"annotations": {NAME: "train", LEAST: "-3"}}, 1, f"{LEAST} is -3"),
        (
            {"annotations": {NAME: "train", LEAST: "4", f"{KOORDINATOR}total-number": "2"}},
            4,
            "total-number is 2, fewer than",
        ),
        (
            {"annotations": {NAME: "train", LEAST: "4", f"{KOORDINATOR}waiting-time": "long"}},
            4,
            "'long' and ignored: write a duration",
        ),
        (
            {"annotations": {NAME: "train", LEAST: "4", f"{KOORDINATOR}mode": "Lax"}},
            4,
            "write Strict or NonStrict",
        ),
        (
            {"annotations": {NAME: "train", LEAST: "4", f"{KOORDINATOR}groups": "{"}},
            4,
            "write a JSON list",
        ),
        (
            {
                "annotations": {
                    NAME: "train",
                    LEAST: "4",
                    f"{KOORDINATOR}groups": json.dumps(["ns/train", "ns/other"]),
                }
            },
            4,
            "names 'ns/other' besides its own group",
        ),
        ({"labels": {f"{OLD}name": "train"}}, 0, "not a number"),
        ({"labels": JOB, "annotations": OWNED}, 0, "it is unknown how many pods of Job/train"),
        ({"labels": JOB, "annotations": {**OWNED, SIZE: "x"}}, 0, f"{SIZE} is 'x'"),
        (
            {"annotations": {ANNOTATION: "train", "scheduling.volcano.sh/group-name": "b"}},
            0,
            "in two groups of Volcano",
        ),
        ({"labels": {LABEL: "n" * 254}}, 0, "254 characters"),
    ],
)
def test_what_cannot_be_read_is_one_warning(said, least, words):
    found = read(**said)
    (warning,) = found.warnings
    assert words in warning
    assert found.gang.least == least
    assert len(warning) < 400


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"annotations": {"weft.dev/gang": "yes"}}, "is 'yes': write owner or none"),
        ({"annotations": OWNED}, "it is placed alone"),
        ({"annotations": {SIZE: "4"}}, "write weft.dev/gang: owner as well"),
    ],
)
def test_a_pod_that_has_no_group_by_mistake_is_told(said, words):
    found = read(**said)
    assert found.gang is UNSET
    assert words in found.warnings[0]


def test_its_own_group_alone_is_no_other_group():
    said = {NAME: "train", LEAST: "4", f"{KOORDINATOR}groups": json.dumps(["ns/train"])}
    assert read(annotations=said).warnings == ()


# --- group objects ---


def policy(system: str, **spec: Any) -> GroupPolicy:
    meta = {"name": "train", "namespace": "ns", "creationTimestamp": "1970-01-01T00:00:02Z"}
    return policy_of(system, msgspec.convert({"metadata": meta, "spec": spec}, KubePodGroup))


def gang_of(count: Any, **more: Any) -> dict[str, Any]:
    return {"schedulingPolicy": {"gang": {"minCount": count}}, **more}


IN_RACK = {"schedulingConstraints": {"topology": [{"key": "rack"}]}}


@pytest.mark.parametrize(
    ("system", "spec", "expected"),
    [
        ("kubernetes", gang_of(4), GroupPolicy(least=4)),
        ("kubernetes", gang_of(4, **IN_RACK), GroupPolicy(least=4, topology_key="rack")),
        (
            "kubernetes",
            gang_of(4, disruptionMode="PodGroup"),
            GroupPolicy(least=4, ends_as_one=True),
        ),
        ("kubernetes", gang_of(4, disruptionMode="Pod"), GroupPolicy(least=4)),
        (
            "kubernetes",
            gang_of(4, disruptionMode={"all": {}}),
            GroupPolicy(least=4, ends_as_one=True),
        ),
        ("kubernetes", gang_of(4, disruptionMode={"single": {}}), GroupPolicy(least=4)),
        ("kubernetes", {"schedulingPolicy": {"basic": {}}}, GroupPolicy(False)),
        (
            "kubernetes",
            {"schedulingPolicy": {"basic": {}}, **IN_RACK},
            GroupPolicy(topology_key="rack"),
        ),
        ("scheduler-plugins", {"minMember": 3, "scheduleTimeoutSeconds": 9}, GroupPolicy(least=3)),
        ("scheduler-plugins", {}, GroupPolicy()),
        (
            "volcano",
            {"minMember": 3, "minTaskMember": {"worker": 2, "master": 1, "none": 0}},
            GroupPolicy(least=3, least_by_task=(("master", 1), ("worker", 2))),
        ),
        ("volcano", {"minMember": 3, "networkTopology": {"mode": "soft"}}, GroupPolicy(least=3)),
    ],
)
def test_a_pod_group_says_what_its_pods_need(system, spec, expected):
    assert policy(system, **spec) == expected._replace(created_ns=2 * 10**9)


@pytest.mark.parametrize(
    ("system", "spec", "least", "words"),
    [
        ("kubernetes", gang_of(0), 1, "minCount is 0: a group has at least 1 pod"),
        ("kubernetes", gang_of(-4), 1, "minCount is -4"),
        ("kubernetes", gang_of("four"), 0, "minCount is 'four', no number of pods"),
        ("kubernetes", gang_of(2**40), 0, "no number of pods"),
        ("kubernetes", gang_of(4, disruptionMode="Most"), 4, "disruptionMode is 'Most'"),
        ("kubernetes", {}, 1, "neither basic nor gang"),
        (
            "kubernetes",
            gang_of(4, schedulingConstraints={"topology": [{"key": "a"}, {"key": "b"}]}),
            4,
            "several keys (a, b): the first counts",
        ),
        ("scheduler-plugins", {"minMember": True}, 0, "spec.minMember is True"),
        ("volcano", {"minMember": 0}, 1, "spec.minMember is 0"),
        ("volcano", {"subGroupPolicy": [{"name": "a"}]}, 1, "subGroupPolicy is not honoured"),
        ("volcano", {"minTaskMember": {"w": "x"}}, 0, "spec.minTaskMember[w] is 'x'"),
    ],
)
def test_what_is_wrong_with_a_pod_group_is_one_warning_that_names_it(system, spec, least, words):
    found = policy(system, **spec)
    (warning,) = found.warnings
    assert warning.startswith("PodGroup ns/train: ")
    assert words in warning
    assert found.least == least


def test_a_topology_that_must_be_kept_and_cannot_be_is_a_reason_to_wait():
    found = policy("volcano", minMember=2, networkTopology={"mode": "hard"})
    assert found.warnings == ()
    assert found.unhonoured == (
        "PodGroup ns/train: spec.networkTopology with mode hard is not honoured by Weft"
    )


@pytest.mark.parametrize("spec", [gang_of(4), {"schedulingPolicy": {"basic": {}}}])
def test_a_pod_group_of_a_composite_one_does_not_start_without_the_others(spec):
    found = policy("kubernetes", **spec, parentCompositePodGroupName="all")
    assert found.warnings == ()
    assert found.unhonoured == (
        "PodGroup ns/train: it is part of CompositePodGroup all, and Weft does not place several "
        "PodGroups together"
    )


def test_a_time_that_is_none_is_no_harm():
    meta = {"name": "train", "namespace": "ns", "creationTimestamp": "soon"}
    found = policy_of("volcano", msgspec.convert({"metadata": meta}, KubePodGroup))
    assert found == GroupPolicy()
