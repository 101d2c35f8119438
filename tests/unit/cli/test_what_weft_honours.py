"""docs/howto/read-your-pods.md: each field of its table is read, as `weft parse` says."""

import json
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "read-your-pods.md"
WEB = {"matchLabels": {"app": "web"}}
NEAR = {"topologyKey": "zone", "labelSelector": WEB}
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": [NEAR]}
TERMS = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}
SPREAD = {**NEAR, "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}
ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "nodeSelector": ({"nodeSelector": {"pool": "a"}}, "on nodes with pool=a"),
    "affinity.nodeAffinity": (
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}}},
        "on nodes with gpu",
    ),
    "affinity.podAffinity": (
        {"affinity": {"podAffinity": REQUIRED}},
        "near pods with app=web in ml, by zone",
    ),
    "affinity.podAntiAffinity": (
        {"affinity": {"podAntiAffinity": REQUIRED}},
        "away from pods with app=web in ml, by zone",
    ),
    "topologySpreadConstraints": (
        {"topologySpreadConstraints": [SPREAD]},
        "spread by zone: at most 2 more than in the domain with the fewest, of pods with app=web "
        "in ml",
    ),
    "containers[].ports[].hostPort": (
        {"containers": [{"name": "c", "ports": [{"hostPort": 80}]}]},
        "on nodes where no pod has host port 80/TCP",
    ),
}


DISK = {"pdName": "data"}
OWN = {"storageClassName": "fast", "resources": {"requests": {"storage": "10Gi"}}}
OF_VOLUMES: dict[str, tuple[dict[str, Any], str]] = {
    "a claim": (
        {"persistentVolumeClaim": {"claimName": "data"}},
        "where PersistentVolumeClaim data has a volume or one can be provisioned",
    ),
    "ephemeral": (
        {"ephemeral": {"volumeClaimTemplate": {"spec": OWN}}},
        "where its own volume exists or can be provisioned: v, 10Gi of class fast",
    ),
    "ephemeral, of the default class": (
        {"ephemeral": {"volumeClaimTemplate": {}}},
        "where its own volume exists or can be provisioned: v, of any size of the default class",
    ),
    "ephemeral, mistyped": (
        {"ephemeral": {"volumeClaimTemplate": {"spec": ["fast"]}}},
        "where its own volume exists or can be provisioned: v, of any size of the default class",
    ),
    "gcePersistentDisk": (
        {"gcePersistentDisk": DISK},
        "on nodes where no pod has gcePersistentDisk data",
    ),
    "gcePersistentDisk, only read": (
        {"gcePersistentDisk": {**DISK, "readOnly": True}},
        "on nodes where no pod writes to gcePersistentDisk data",
    ),
}


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WISH = {"weight": 7, "podAffinityTerm": NEAR}
WISHED: dict[str, tuple[dict[str, Any], str]] = {
    "affinity.nodeAffinity": (
        {
            "affinity": {
                "nodeAffinity": {
                    PREFERRED: [{"weight": 50, "preference": TERMS["nodeSelectorTerms"][0]}]
                }
            }
        },
        "on nodes with gpu (weight 50)",
    ),
    "affinity.podAffinity": (
        {"affinity": {"podAffinity": {PREFERRED: [WISH]}}},
        "near pods with app=web in ml, by zone (weight 7)",
    ),
    "affinity.podAntiAffinity": (
        {"affinity": {"podAntiAffinity": {PREFERRED: [WISH]}}},
        "away from pods with app=web in ml, by zone (weight 7)",
    ),
    "topologySpreadConstraints": (
        {"topologySpreadConstraints": [{**SPREAD, "whenUnsatisfiable": "ScheduleAnyway"}]},
        "spread by zone, of pods with app=web in ml",
    ),
}


def fields() -> set[str]:
    first_table = (
        PAGE.read_text().partition("\n## What Weft honours of a pod\n")[2].partition("\n### ")[0]
    )
    rows = [line for line in first_table.splitlines() if line.startswith("| `")]
    return {row.split("`")[1] for row in rows}


def manifest(spec: dict[str, Any]) -> str:
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c"}], **spec},
    }
    meta = {"name": "web", "namespace": "ml"}
    kind = {"apiVersion": "apps/v1", "kind": "Deployment"}
    return json.dumps({**kind, "metadata": meta, "spec": {"template": template}})


@pytest.mark.parametrize("field", ASKED)
def test_parse_says_what_it_reads(field: str, weft: Any, tmp_path: Path) -> None:
    assert field in fields()
    spec, words = ASKED[field]
    file = tmp_path / "web.yaml"
    file.write_text(manifest(spec))
    said = weft("parse", file, "--output", "json")
    assert said.code == 0
    assert json.loads(said.out)[0]["constraints"] == [words]
    assert f"ml/Deployment/web: placed only {words}" in weft("parse", file).out


@pytest.mark.parametrize("kind", OF_VOLUMES)
def test_parse_says_what_volumes_ask(kind: str, weft: Any, tmp_path: Path) -> None:
    source, words = OF_VOLUMES[kind]
    file = tmp_path / "web.yaml"
    file.write_text(manifest({"volumes": [{"name": "v", **source}]}))
    said = weft("parse", file, "--output", "json")
    assert said.code == 0
    assert json.loads(said.out)[0]["constraints"] == [words]
    assert f"ml/Deployment/web: placed only {words}" in weft("parse", file).out


@pytest.mark.parametrize(
    ("templates", "words"),
    [
        (
            [{"metadata": {"name": "data"}, "spec": OWN}],
            ["where its own volume exists or can be provisioned: data, 10Gi of class fast"],
        ),
        ([], []),
        ("typo", []),
        (["typo"], []),
    ],
)
def test_parse_says_which_claims_a_stateful_set_makes(
    templates: Any, words: list[str], weft: Any, tmp_path: Path
) -> None:
    whole = json.loads(manifest({})) | {"kind": "StatefulSet"}
    whole["spec"]["volumeClaimTemplates"] = templates
    file = tmp_path / "db.yaml"
    file.write_text(json.dumps(whole))
    said = weft("parse", file, "--output", "json")
    assert json.loads(said.out)[0]["constraints"] == words


@pytest.mark.parametrize("field", WISHED)
def test_parse_says_what_is_preferred(field: str, weft: Any, tmp_path: Path) -> None:
    assert field in fields()
    spec, words = WISHED[field]
    file = tmp_path / "web.yaml"
    file.write_text(manifest(spec))
    said = weft("parse", file, "--output", "json")
    assert said.code == 0
    assert json.loads(said.out)[0]["constraints"] == []
    assert json.loads(said.out)[0]["preferences"] == [words]
    assert f"ml/Deployment/web: placed preferably {words}" in weft("parse", file).out


def test_a_pods_system_is_no_demand_on_a_node(weft: Any, tmp_path: Path) -> None:
    """No filter of kube-scheduler reads `spec.os`, 1.36.2 or 1.37.1: the kubelet does. Both are
    compared in tests/cluster/test_same_answer.py, which draws it."""
    assert "os" in fields()
    file = tmp_path / "web.yaml"
    file.write_text(manifest({"os": {"name": "windows"}}))
    said = weft("parse", file, "--output", "json")
    assert said.code == 0
    assert json.loads(said.out)[0]["constraints"] == []


def test_the_rest_of_the_table_is_tested_elsewhere() -> None:
    """Tolerations and images are no demand on a node by themselves, namespaces are part of a term;
    of volumes there is a table of its own. Resources and a pod's own node are room, and features
    that nodes declare are theirs to say: the real kube-scheduler is compared with."""
    elsewhere = {"tolerations", "volumes", "containers[].image", "namespaces", "schedulingGroup"}
    elsewhere |= {"containers[].resources", "restartPolicyRules", "nodeName", "os"}
    assert fields() - ASKED.keys() == elsewhere


def test_a_pod_that_would_wait_for_ever_is_an_error(weft: Any, tmp_path: Path) -> None:
    file = tmp_path / "greater.yaml"
    greater = {"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}
    near = {**NEAR, "labelSelector": greater}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [near]}
    file.write_text(manifest({"affinity": {"podAffinity": required}}))
    said = weft("parse", file)
    assert said.code == 1
    assert "Deployment web: spec.affinity.podAffinity: 'Gt' is not an operator" in said.err
    assert "run this pod through kube-scheduler" in said.err


GROUP = {"kind": "PodGroup", "metadata": {"name": "train", "namespace": "ml"}}


def group_lines(weft: Any, file: Path, *documents: str) -> tuple[Any, list[str]]:
    file.write_text("\n---\n".join(documents))
    said = weft("parse", file)
    return said, [line for line in said.out.splitlines() if "with its group" in line]


def test_a_group_is_shown_with_what_its_object_in_the_file_says(weft: Any, tmp_path: Path) -> None:
    spec = {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
        "disruptionMode": {"all": {}},
    }
    group = {**GROUP, "apiVersion": "scheduling.k8s.io/v1beta1", "spec": spec}
    pods = manifest({"schedulingGroup": {"podGroupName": "train"}})
    said, (line,) = group_lines(weft, tmp_path / "gang.yaml", pods, json.dumps(group))
    assert said.code == 0
    assert line.endswith(
        "with its group ml/train (kubernetes): 2 at once, in one rack, preempted together"
    )
    row = json.loads(weft("parse", tmp_path / "gang.yaml", "-o", "json").out)[0]["group"]
    assert (row["system"], row["least"], row["topology_key"]) == ("kubernetes", 2, "rack")


def test_a_group_whose_object_is_elsewhere_is_no_error(weft: Any, tmp_path: Path) -> None:
    pods = manifest({"schedulingGroup": {"podGroupName": "train"}})
    other = {**GROUP, "apiVersion": "scheduling.run.ai/v2alpha2", "spec": {"minMember": 2}}
    said, (line,) = group_lines(weft, tmp_path / "gang.yaml", pods, json.dumps(other))
    assert said.code == 0
    assert "whose size this file does not say" in line


def test_a_group_with_a_size_that_nobody_can_read_is_an_error(weft: Any, tmp_path: Path) -> None:
    web = json.loads(manifest({}))
    prefix = "gang.scheduling.koordinator.sh/"
    said = {f"{prefix}name": "train", f"{prefix}min-available": "many"}
    web["spec"]["template"].setdefault("metadata", {})["annotations"] = said
    said, lines = group_lines(weft, tmp_path / "gang.yaml", json.dumps(web))
    assert said.code == 1
    assert lines
    assert "group ml/train has no size that can be read: the pod waits" in said.err
    assert "'many', not a number of pods" in said.err


def test_a_group_whose_topology_cannot_be_kept_is_an_error(weft: Any, tmp_path: Path) -> None:
    web = json.loads(manifest({}))
    web["spec"]["template"]["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "train"}
    spec = {"minMember": 2, "networkTopology": {"mode": "hard"}}
    group = {**GROUP, "apiVersion": "scheduling.volcano.sh/v1beta1", "spec": spec}
    said, _ = group_lines(weft, tmp_path / "gang.yaml", json.dumps(group), json.dumps(web))
    assert said.code == 1
    assert "Deployment web: PodGroup ml/train: spec.networkTopology with mode hard" in said.err
