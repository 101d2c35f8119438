"""Every command's tables at 80 columns: no cut name or number, no line beyond them."""

import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from commands import NODES, Weft, policy_file
from dialect_pods import node, pods

from weft.cli import interference
from weft.interference.dataset import (
    CoLocationSample,
    Dataset,
    Feature,
    SoloProfile,
    encode,
)
from weft.interference.evaluate import ExaminationResult
from weft.interference.scores import PredictionScore

WIDTH = 80
CLI = Path(interference.__file__).parent
LONG_NODE = "ip-10-0-132-217.eu-central-1.compute.internal"
LONG_POLICY = "load-aware:mode=pack"
DRAWN = {
    "adopt.py",
    "cluster.py",
    "decisions.py",
    "defrag.py",
    "doctor.py",
    "experiment.py",
    "inspect.py",
    "interference.py",
    "metrics.py",
    "parse_rows.py",
    "policies.py",
    "profile_tables.py",
    "queues.py",
    "shadow.py",
    "status.py",
    "tables.py",
    "trace.py",
    "usage.py",
}
"""The modules with tables, each drawn by a test here or beside its command's (metrics, inspect,
doctor, status, adopt, shadow, experiments of a file, queues,
usage)."""


@pytest.fixture
def narrow(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> Weft:
    """The command on a terminal of 80 columns, or piped by somebody who set COLUMNS."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    return weft


def whole(printed: str, *names: str) -> None:
    """Within 80 columns, with all of these names, and no cut ones."""
    assert [line for line in printed.splitlines() if len(line) > WIDTH] == []
    assert "…" not in printed
    words = [word.rstrip("*") for word in printed.split()]  # * points to a note below
    assert [name for name in names if name not in words] == []


def filled(kind: Any, **given: Any) -> Any:
    """A struct with large numbers and long names wherever nothing else is given."""
    values = {"int": 1_234_567, "float": 123_456.7, "str": "a-name-of-thirty-two-characters-"}
    fields = {}
    for name, hint in get_type_hints(kind).items():
        if name in given or name.startswith("__"):
            continue
        options = [option for option in getattr(hint, "__args__", (hint,)) if option is not None]
        plain = next((o for o in (hint, *options) if getattr(o, "__name__", "") in values), None)
        struct = next((o for o in (hint, *options) if hasattr(o, "__struct_fields__")), None)
        if plain is not None:
            fields[name] = values[plain.__name__]
        elif struct is not None:
            fields[name] = filled(struct)
    return kind(**fields, **given)


def test_every_table_is_drawn_here() -> None:
    drawing = {path.name for path in CLI.glob("*.py") if "table_with(" in path.read_text()}
    assert drawing - {"output.py"} == DRAWN
    by_hand = [path.name for path in CLI.glob("*.py") if "rich.table" in path.read_text()]
    assert by_hand == []


@pytest.mark.parametrize("mode", [(), ("--timed",)])
def test_simulate(narrow: Weft, mode: tuple[str, ...]) -> None:
    policies = ("--policy", LONG_POLICY, "--policy", "alnair-high-performance")
    said = narrow.simulate(*policies, "--seeds", 2, *mode)
    whole(said.out, LONG_POLICY, "alnair-high-performance")


def test_policies(narrow: Weft) -> None:
    said = narrow("policies")
    known = json.loads(narrow("policies", "--output", "json").out)
    whole(said.out, *(policy["name"] for policy in known))
    printed = " ".join(said.out.split())
    assert [policy["name"] for policy in known if policy["summary"] not in printed] == []


def test_parse(narrow: Weft) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": LONG_NODE, "namespace": "a-team-of-a-rather-long-name"},
        "spec": {"containers": [{"name": "main-container-of-the-pod", "image": "x"}]},
    }
    path = narrow.folder / "pod.yaml"
    path.write_text(json.dumps(pod))
    table, _, _ = narrow("parse", path).out.partition("\ntotal: ")
    whole(table, f"Pod/{LONG_NODE}", "a-team-of-a-rather-long-name", "main-container-of-the-pod")


def test_replay(narrow: Weft) -> None:
    narrow.nodes.write_text(re.sub(r"\bn(\d)", rf"{LONG_NODE}-\1", NODES))
    path, mine = narrow.folder / "decisions.jsonl", narrow.folder / "mine.py"
    mine.write_text(policy_file("query.node_kind"))
    assert narrow.simulate("--policy", mine, "--decisions", path).code == 0
    mine.write_text(policy_file("-query.node_kind"))
    said = narrow("replay", path, "--policy", mine)
    assert said.code == 1
    nodes = re.findall(rf"{LONG_NODE}-\d", said.out)
    whole(said.out, "field", "recorded", "replayed", *nodes)
    assert len(set(nodes)) >= 2


def test_trace(narrow: Weft) -> None:
    path = narrow.folder / "cluster.json"
    path.write_text(json.dumps({"items": [node(LONG_NODE), *pods()]}))
    files = ("--nodes", narrow.folder / "n.csv", "--pods", narrow.folder / "p.csv")
    said = narrow("trace", "from-cluster", path, *files)
    _, _, table = said.out.partition("ended\n")
    whole(table, "gpushare", "kubeknots", "nvidia")


def test_stranded(narrow: Weft) -> None:
    path, state = narrow.folder / "cluster.json", narrow.folder / "snapshot.json"
    path.write_text(json.dumps({"items": [node(LONG_NODE), *pods()]}))
    narrow("snapshot", state, "--from", path)
    said = narrow("cluster", "stranded", "--snapshot", state)
    whole(said.out, "usable", "shares", "slots", "nodes", "models", "cpu", "memory")


def test_profiles(narrow: Weft) -> None:
    names = [f"an-application-of-a-long-name-{i}" for i in range(3)]
    model = "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"
    features = {"sm_active_ratio": Feature(0.5, 0.75), "power_w": Feature(400, 450)}
    solos = tuple(
        SoloProfile(name, model, "time-slicing", features, 30_000, 35_000, 1_212.5, 3, 9_000.0, "m")
        for name in names
    )
    runs = (CoLocationSample(names[0], tuple(names[1:]), model, "time-slicing", 6.25, 0.5, 3),)
    path = narrow.folder / "profiles.json"
    path.write_bytes(encode(Dataset(solo=solos, corun=runs)))
    whole(narrow("profile", "list", "--file", path).out, *names, model)
    headline, *tables = narrow("profile", "show", names[0], "--file", path).out.splitlines()
    assert model in headline
    whole("\n".join(tables), *names, model)


def test_interference_predictions(narrow: Weft) -> None:
    names = [f"an-application-of-a-long-name-{i}" for i in range(2)]
    path = narrow.folder / "table.json"
    path.write_text(json.dumps({name: dict.fromkeys(names, 1.25) for name in names}))
    whole(narrow("interference", "predict", path).out, *names)


def test_interference_examination(narrow: Weft, capsys: pytest.CaptureFixture[str]) -> None:
    score = filled(PredictionScore, samples=12_345, mae=0.0123, mape=0.123, coverage=0.9)
    methods = dict.fromkeys(["weft", "sum of utilisation", "worst pair"], score)
    results = [
        ExaminationResult(source, "NVIDIA-A100-SXM4-80GB", "time-slicing", split, methods, (0.8, 1))
        for source in ("oracle_throughputs", "another_source")
        for split in ("new application", "several others")
    ]
    capsys.readouterr()
    interference.print_results(results)
    printed = capsys.readouterr().out
    whole(printed, "weft", "12345", "0.0123")
    assert printed.count("oracle_throughputs") >= 1


def test_piped_without_a_width_a_row_is_a_line(weft: Weft) -> None:
    said = weft.simulate("--policy", LONG_POLICY, "--policy", "fgd", "--seeds", 2)
    header, *rows = said.out.splitlines()
    assert header.startswith("policy  ")
    assert len([row for row in rows if row.startswith((LONG_POLICY, "fgd  "))]) == 2


def test_reproduced_and_compared(narrow: Weft) -> None:
    """Exit code 1, as one result is not as expected; the same results do not differ."""
    folder = narrow.folder / "reproduced"
    folder.mkdir()
    (folder / "experiment.yaml").write_text(
        "{apiVersion: weft.dev/v1, kind: Experiment, name: small, workload: "
        "{kind: overprovisioned, percents: [0]}, schedulers: [exclusive], seeds: {count: 1}}"
    )
    check = "measure: makespan_s, scheduler: exclusive, criterion: "
    (folder / "expected.yaml").write_text(
        "{apiVersion: weft.dev/v1, kind: ExpectedResults, title: Small, checks: ["
        f"{{name: first-check-of-a-rather-long-name, {check}[0, 99999]}}, "
        f"{{name: second-check, {check}[0, 1]}}]}}"
    )
    out = narrow.folder / "out"
    said = narrow("experiment", "reproduce", folder, "--out", out, "--jobs", "1")
    assert said.code == 1
    whole(said.out, "reproduced", "first-check-of-a-rather-long-name", "second-check", "met")
    assert (out / "index.html").is_file()
    assert (out / "small" / "report" / "report.html").is_file()
    said = narrow("experiment", "compare", out / "small", out / "small")
    assert said.code == 0
    whole(said.out, "exclusive", "makespan_s", "jct_mean_s")
    assert "Fewer than 5 seeds: no intervals" in said.out
    said = narrow("experiment", "compare", out / "small", out / "small", "--output", "csv")
    assert "0,sound,exclusive,0,0,makespan_s," in said.out
