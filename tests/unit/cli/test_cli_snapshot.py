"""`weft snapshot`, and the commands that read one."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from commands import Weft
from dialect_pods import ASKING, node, pods
from inspected_cluster import served

CANARY = "canary-5f1d"
SECRET = {
    "kind": "Secret",
    "metadata": {"name": "s", "namespace": "d"},
    "data": {"password": f"{CANARY}-secret"},
}
DISKS = [{"name": "v", "iscsi": {"secretRef": {"name": f"{CANARY}-iscsi"}}}]


def with_secrets(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod that has something to hide wherever a pod can."""
    spec, container = pod["spec"], dict(pod["spec"]["containers"][0])
    container |= {
        "image": f"registry/{CANARY}-image",
        "command": [f"{CANARY}-command"],
        "args": [f"--password={CANARY}-argument"],
        "env": [
            {"name": "PASSWORD", "value": f"{CANARY}-value"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": f"GPU-{CANARY}-value"},
        ],
    }
    annotations = {
        **pod["metadata"]["annotations"],
        "kubectl.kubernetes.io/last-applied-configuration": f"{CANARY}-applied",
        "vault.example.com/token": f"{CANARY}-annotation",
        "weft.dev/delivery": f'{{"env": "{CANARY}-delivered"}}',
    }
    ended = {"exitCode": 1, "message": f"CUDA out of memory {CANARY}-message"}
    return {
        **pod,
        "metadata": {**pod["metadata"], "annotations": annotations},
        "spec": {
            **spec,
            "containers": [container, *spec["containers"][1:]],
            "volumes": DISKS if pod["metadata"]["name"] == "weft" else [],
        },
        "status": {
            "phase": "Pending",
            "message": f"{CANARY}-status",
            "conditions": [{"type": "PodScheduled", "status": "False", "message": CANARY}],
            "containerStatuses": [{"name": "c", "lastState": {"terminated": ended}}],
        },
    }


@pytest.fixture
def objects(weft: Weft) -> Path:
    """A file of objects, as kubectl writes it, of a cluster whose pods wait."""
    path = weft.folder / "cluster.json"
    items = [SECRET, node("a"), node("b"), *map(with_secrets, pods())]
    path.write_text(json.dumps({"kind": "List", "items": items}))
    return path


@pytest.fixture
def snapshot(weft: Weft, objects: Path) -> Path:
    path = weft.folder / "snapshot.json"
    said = weft("snapshot", path, "--from", objects)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"{path}: 2 nodes, {len(ASKING)} pods (0 on nodes), ")
    return path


def test_nothing_that_may_be_secret_is_in_the_file(snapshot: Path) -> None:
    assert CANARY.encode() not in snapshot.read_bytes()


def test_pod_groups_of_a_file_are_told_apart_by_their_api(weft: Weft, snapshot: Path) -> None:
    versions = {
        "podGroups": "scheduling.k8s.io/v1beta1",
        "schedulerPluginsPodGroups": "scheduling.x-k8s.io/v1alpha1",
        "volcanoPodGroups": "scheduling.volcano.sh/v1beta1",
        "nobodys": "scheduling.run.ai/v2alpha2",
    }
    groups = [
        {
            "kind": "PodGroup",
            "apiVersion": version,
            "metadata": {"name": field, "namespace": "d"},
            "spec": {"minMember": 2},
        }
        for field, version in versions.items()
    ]
    objects = weft.folder / "groups.json"
    items = [node("a"), *pods(), *groups]
    objects.write_text(json.dumps({"kind": "List", "items": items}))
    assert weft("snapshot", snapshot, "--from", objects).code == 0
    written = json.loads(snapshot.read_text())
    for field in versions.keys() - {"nobodys"}:
        assert [each["metadata"]["name"] for each in written[field]] == [field]
    assert "nobodys" not in snapshot.read_text()


def names_in(file: Path) -> set[str]:
    return {pod["metadata"]["name"] for pod in json.loads(file.read_text())["pods"]}


def test_without_names_it_simulates_as_with_them(weft: Weft) -> None:
    """Where all have room: who comes first goes by name."""
    objects, snapshot = weft.folder / "cluster.json", weft.folder / "snapshot.json"
    items = [*map(node, "abcdef"), *map(with_secrets, pods())]
    objects.write_text(json.dumps({"kind": "List", "items": items}))
    assert weft("snapshot", snapshot, "--from", objects).code == 0
    hidden = weft.folder / "hidden.json"
    assert weft("snapshot", hidden, "--from", objects, "--anonymous").code == 0
    before, after = (names_in(file) for file in (snapshot, hidden))
    assert (before & after, len(before)) == (set(), len(after))
    runs = [
        weft("simulate", "--snapshot", file, "--policy", "fgd", "--no-timing", "-o", "json").out
        for file in (snapshot, hidden)
    ]
    assert runs[0] == runs[1]
    assert json.loads(runs[0])["runs"][0]["failed_pods"] == 1, "one lacks an agent"


def test_a_snapshot_is_gzipped_where_its_name_says_so(
    weft: Weft, objects: Path, snapshot: Path
) -> None:
    packed = weft.folder / "snapshot.json.gz"
    assert json.loads(weft("snapshot", packed, "--from", objects, "-o", "json").out)["pods"] == len(
        ASKING
    )

    def without_time(text: bytes) -> Any:
        return {**json.loads(text), "takenAt": ""}

    assert without_time(gzip.decompress(packed.read_bytes())) == without_time(snapshot.read_bytes())
    assert weft("simulate", "--snapshot", packed, "--policy", "fgd").code == 0


def test_waiting_pods_find_places_beside_those_that_hold_some(weft: Weft, snapshot: Path) -> None:
    said = weft("simulate", "--snapshot", snapshot, "--policy", "binpack", "-o", "json")
    run = json.loads(said.out)["runs"][0]
    waiting = len(ASKING) - 1  # "none" requests no GPU
    failed = 1  # only an agent could deliver "kai" its part
    assert (run["failed_pods"], run["pods"]) == (failed, waiting)
    assert run["gpu_held_percent"] > 50
    assert f"0 pods stay in place, {waiting} wait" in said.err


def test_a_pod_is_explained_and_its_nearest_name_said(weft: Weft, snapshot: Path) -> None:
    said = weft("explain", "pod", "weft", "--snapshot", snapshot)
    assert said.code == 0
    assert "schedulerName" in said.out.splitlines()[0]
    assert "did you mean 'weft'?" in weft("explain", "pod", "wefd", "--snapshot", snapshot).err


def broken(change: Any) -> bytes:
    return json.dumps(change).encode()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda text: text[: len(text) // 2], "is not a snapshot, or is truncated: "),
        (lambda text: b"[]", "field kind: None is not ClusterSnapshot; take one with"),
        (lambda text: b'{"kind": "List", "items": []}', "field kind: 'List' is not"),
        (lambda text: text.replace(b"weft.dev/v1", b"weft.dev/v2", 1), "'weft.dev/v2' is not"),
        (lambda text: broken(json.loads(text) | {"secrets": []}), "unknown field `secrets`"),
        (lambda text: broken(_in_pod(text, "image", "x")), "pods[0].spec.containers[0].image: is"),
        (lambda text: broken(_in_pod(text, "name", 3)), "Expected `str`, got `int`"),
        (lambda text: broken(_seed(text, "x")), "field configuration.seed: 'x': Expected `int`"),
        (lambda text: broken(_seed(text, -1)), "field configuration.seed: -1 is negative"),
    ],
)
def test_a_file_that_is_no_snapshot_is_one_error(
    weft: Weft, snapshot: Path, how: Any, said: str
) -> None:
    snapshot.write_bytes(how(snapshot.read_bytes()))
    told = weft("explain", "pod", "weft", "--snapshot", snapshot)
    assert (told.code, told.out, told.err.count("\n")) == (1, "", 1)
    assert told.err.startswith(f"weft: error: {snapshot}")
    assert said in told.err


def _in_pod(text: bytes, field: str, value: object) -> Any:
    document = json.loads(text)
    document["pods"][0]["spec"]["containers"][0][field] = value
    return document


def _seed(text: bytes, value: object) -> Any:
    document = json.loads(text)
    document["configuration"]["seed"] = value
    return document


def test_options_that_contradict_are_named(weft: Weft, snapshot: Path, objects: Path) -> None:
    start = ("simulate", "--policy", "fgd", "--snapshot", snapshot)
    assert "--seeds: a snapshot has only one arrival order" in weft(*start, "--seeds", 3).err
    assert "remove one of them" in weft(*start, "--decisions-from", "x").err
    assert "remove --timed" in weft(*start, "--timed").err
    explain = ("explain", "pod", "weft", "--snapshot", snapshot)
    assert "reads a file; remove the options for a live" in weft(*explain, "--url", "http://x").err
    assert "remove --kubeconfig" in weft("snapshot", "--from", objects, "--context", "c").err


def test_what_strands_idle_gpus_is_told_of_a_snapshot(weft: Weft, snapshot: Path) -> None:
    said = weft("cluster", "stranded", "--snapshot", snapshot, "-o", "json")
    assert (said.code, said.err) == (0, "")
    (row,) = json.loads(said.out)["models"]
    assert row["idle"] == row["gpus"] > 0
    assert row["usable"] + sum(row["by"].values()) == pytest.approx(row["idle"])
    table = weft("cluster", "stranded", "--snapshot", snapshot).out
    assert table.split()[:4] == ["model", "GPUs", "idle", "usable"]
    assert "GPUs are idle; pods like those in the cluster can use at most" in table
    refused = weft("cluster", "stranded", "--snapshot", snapshot, "--context", "x")
    assert refused.code == 1


CLUSTERS_OWN = """apiVersion: weft.dev/v1
kind: WeftConfiguration
profiles: [{schedulerName: weft, policies: [{name: coscheml, options: {pairing: mystic}}]}]
interference: {table: /data/table.json, mystic: /data/mystic.json}
"""


@pytest.mark.parametrize(
    "words", [("cluster", "stranded"), ("defrag", "plan", "--stranded"), ("snapshot", "FILE")]
)
def test_files_of_the_schedulers_pod_are_gone_without(
    weft: Weft, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The configuration in the cluster names files in the scheduler's own container."""
    with served(tmp_path) as (server, kubeconfig):
        server.add("nodes", node("a"))
        meta = {"name": "weft-config", "namespace": "weft-system"}
        server.add("configmaps", {"metadata": meta, "data": {"weft.yaml": CLUSTERS_OWN}})
        given = [tmp_path / "state.json" if word == "FILE" else word for word in words]
        said = weft(*given, "--kubeconfig", kubeconfig, "-o", "json")
    assert said.code == 0, said.err
    json.loads(said.out)
    lines = [line for line in said.err.splitlines() if "/data/" in line]
    if words[0] == "snapshot":
        assert lines == [], "it keeps no predictions"
    else:
        assert lines == [
            "weft: warning: interference.table /data/table.json and interference.mystic "
            "/data/mystic.json of the cluster's configuration are not on this machine: ignored, "
            "with what they predict"
        ]
