"""`weft trace` and `weft simulate --decisions-from`."""

import io
import json
import sys
from pathlib import Path

import pytest
from commands import Weft
from dialect_pods import ASKING, node, pods


@pytest.fixture
def objects(weft: Weft) -> Path:
    path = weft.folder / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": [node("a"), node("b"), *pods()]}))
    return path


def written(weft: Weft, *arguments: object) -> tuple[object, ...]:
    return ("trace", *arguments, "--nodes", weft.folder / "n.csv", "--pods", weft.folder / "p.csv")


def test_a_clusters_nodes_and_pods_are_simulated(weft: Weft, objects: Path) -> None:
    said = weft(*written(weft, "from-cluster", objects))
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[:2] == [
        f"{weft.folder}/n.csv: 2 nodes, 8 GPUs, 129,280 MiB in all",
        f"{weft.folder}/p.csv: {len(ASKING)} pods, 0 of them ended",
    ]
    trace = ("--nodes", weft.folder / "n.csv", "--pods", weft.folder / "p.csv")
    run = json.loads(
        weft("simulate", *trace, "--policy", "binpack", "--timed", "--output", "json").out
    )["runs"][0]
    assert (run["pods"], run["failed_pods"]) == (len(ASKING), 0)
    assert run["gpu_held_percent"] > 50, "memory counts, not cores alone"


def test_standard_input_is_read_and_json_printed(
    weft: Weft, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(objects.read_bytes()))
    monkeypatch.setattr(sys, "stdin", stdin)
    said = weft(*written(weft, "from-cluster", "-", "--output", "json"))
    found = json.loads(said.out)
    assert (found["nodes"], found["gpus"], found["pods"]) == (2, 8, len(ASKING))
    alike = {**dict.fromkeys(ASKING, 1), "gpushare": 2}  # nobody says how a coscheml pod differs
    del alike["coscheml"]
    assert found["by_dialect"] == alike


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: List", "is not what `kubectl get nodes,pods -A -o json` writes: "),
        (
            "{}",
            "field items: is missing; provide the output of `kubectl get nodes,pods -A -o json`",
        ),
        ('{"items": []}', "has no node; provide"),
        ('{"items": [{"kind": "Node", "metadata": {"name": "a"}}]}', "has no pod; provide"),
        ('{"items": [{"kind": "Pod", "metadata": 3}]}', "items[0]: is not a Kubernetes object"),
        ('{"items": [{"kind": "Node", "metadata": {}}]}', "items[0].metadata.name: is missing"),
    ],
)
def test_what_is_no_list_of_objects_is_one_error(weft: Weft, text: str, said: str) -> None:
    path = weft.folder / "bad.json"
    path.write_text(text)
    told = weft(*written(weft, "from-cluster", path))
    assert (told.code, told.out, told.err.count("\n")) == (1, "", 1)
    assert told.err.startswith(f"weft: error: {path}")
    assert said in told.err


def test_options_that_contradict_or_lack_are_named(weft: Weft, objects: Path) -> None:
    both = weft(*written(weft, "from-cluster", objects, "--context", "x"))
    assert "remove --kubeconfig, --context" in both.err
    assert "--url: is missing" in weft(*written(weft, "from-prometheus")).err
    url = ("--url", "http://127.0.0.1:1")
    assert (
        "--end: 'noon' is not a time"
        in weft(*written(weft, "from-prometheus", *url, "--end", "noon")).err
    )
    gone = weft(*written(weft, "from-prometheus", *url))
    assert (gone.code, gone.err.count("\n")) == (1, 1)
    assert "trace from-prometheus: http://127.0.0.1:1" in gone.err


def test_a_recorded_day_is_run_under_other_policies(weft: Weft) -> None:
    day = weft.folder / "day.jsonl"
    first = weft.simulate(
        *("--policy", "first-fit", "--timed", "--decisions", day, "--output", "csv", "--no-timing")
    )
    assert first.code == 0
    again = weft(
        *("simulate", "--decisions-from", day, "--policy", "first-fit", "--policy", "fgd"),
        *("--output", "csv", "--no-timing", "--jobs", "1"),
    )
    assert again.code == 0
    assert again.out.splitlines()[:2] == first.out.splitlines()
    assert again.err.startswith(f"weft: {day}: recorded: 20 pods on 4 nodes with 8 GPUs in ")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            ("--nodes", "n.csv"),
            "--decisions-from: is a whole cluster and workload; remove n.csv",
        ),
        (("--seeds", "2"), "--seeds: a recorded day has only one arrival order; leave it out"),
        (
            ("--timed",),
            "--decisions-from: replays a day's own arrivals; remove --timed, --compress and",
        ),
        (
            ("--demand", "1"),
            "--decisions-from: replays a day's own arrivals; remove --timed, --compress",
        ),
    ],
)
def test_what_a_recorded_day_has_itself_is_refused(
    weft: Weft, more: tuple[str, ...], said: str
) -> None:
    told = weft("simulate", "--decisions-from", weft.nodes, "--policy", "fgd", *more)
    assert (told.code, told.err.count("\n")) == (1, 1)
    assert said in told.err


def test_without_a_cluster_it_is_said_what_to_name(weft: Weft) -> None:
    told = weft("simulate", "--policy", "fgd", "--nodes", weft.nodes)
    assert (
        "--pods: is missing: name a CSV file, or a decisions file with --decisions-from" in told.err
    )


def test_pods_of_a_gang_keep_it(weft: Weft) -> None:
    marks = {"name": "train", "min-available": "2"}
    grouped = [
        {
            **pod,
            "metadata": {
                **pod["metadata"],
                "annotations": dict(pod["metadata"].get("annotations", {})),
            },
        }
        for pod in pods()[:2]
    ]
    for pod in grouped:
        for key, value in marks.items():
            pod["metadata"]["annotations"][f"gang.scheduling.koordinator.sh/{key}"] = value
        pod["metadata"]["namespace"] = "ml"
    path = weft.folder / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": [node("a"), *grouped, pods()[2]]}))
    assert weft(*written(weft, "from-cluster", path)).code == 0
    header, *rows = (weft.folder / "p.csv").read_text().splitlines()
    assert header.endswith(",gang,gang_min")
    gangs = sorted(row.split(",")[-2:] for row in rows)
    assert gangs == [["", ""], ["koordinator:ml/train", ""], ["koordinator:ml/train", ""]]


def test_pods_keep_their_queues_where_one_names_its_own(weft: Weft) -> None:
    """The others' are their namespaces'."""
    items = [json.loads(json.dumps(pod)) for pod in pods()[:3]]
    for pod, namespace in zip(items, ("ml", "ml", "web"), strict=True):
        pod["metadata"]["namespace"] = namespace
    path = weft.folder / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": [node("a"), *items]}))
    assert weft(*written(weft, "from-cluster", path)).code == 0
    assert "queue" not in (weft.folder / "p.csv").read_text()
    items[0]["metadata"].setdefault("labels", {})["weft.dev/queue"] = "research"
    path.write_text(json.dumps({"kind": "List", "items": [node("a"), *items]}))
    assert weft(*written(weft, "from-cluster", path)).code == 0
    header, *rows = (weft.folder / "p.csv").read_text().splitlines()
    assert header.endswith(",queue")
    assert sorted(row.split(",")[-1] for row in rows) == ["ml", "research", "web"]
