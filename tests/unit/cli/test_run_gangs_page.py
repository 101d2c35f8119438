"""docs/howto/run-gangs.md: its manifests are read as it says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "howto" / "run-gangs.md").read_text()
BLOCKS = re.findall(r"## ([^\n]+)\n(?:(?!\n## ).)*?```yaml\n(.*?)```", PAGE, re.DOTALL)
EXPECTED: dict[str, tuple[str, str, int, str, dict[str, int]]] = {
    "scheduler-plugins": ("scheduler-plugins", "train", 4, "", {}),
    "Kubernetes": ("kubernetes", "train", 4, "example.org/rack", {}),
    "Volcano": ("volcano", "train", 3, "", {"master": 1, "worker": 2}),
    "Koordinator": ("koordinator", "train", 4, "", {}),
    "Without a group object": ("owner", "Job/train", 4, "", {}),
}


def test_each_system_of_the_page_has_a_manifest() -> None:
    assert [title for title, _ in BLOCKS] == list(EXPECTED)


@pytest.mark.parametrize(("title", "text"), BLOCKS, ids=[title for title, _ in BLOCKS])
def test_its_manifest_is_read_as_the_page_says(
    title: str, text: str, weft: Any, tmp_path: Path
) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(text)
    said = weft("parse", file, "--output", "json")
    assert (said.code, said.err) == (0, "")
    (row,) = json.loads(said.out)
    assert row["warnings"] == []
    group = row["group"]
    fields = ("system", "name", "least", "topology_key", "least_by_task")
    assert tuple(group[field] for field in fields) == EXPECTED[title]


def test_what_the_page_shows_is_printed(weft: Any, tmp_path: Path) -> None:
    shown = re.findall(r"```console\n\$ weft parse train.yaml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "train.yaml"
    file.write_text(dict(BLOCKS)["scheduler-plugins"])
    printed = [line.rstrip() for line in weft("parse", file).out.splitlines()]
    assert [line for line in shown[0].splitlines() if line.rstrip() not in printed] == []


@pytest.mark.parametrize(
    ("kind", "size", "code"),
    [
        ("JobSet", None, 1),
        ("JobSet", "4", 0),
        ("LeaderWorkerSet", None, 0),
        ("Job", None, 1),
        ("Job", "4", 0),
    ],
)
def test_sizes_that_a_controller_will_write_are_missed_in_no_file(
    kind: str, size: str | None, code: int, weft: Any, tmp_path: Path
) -> None:
    marks = {"weft.dev/gang": "owner", **({"weft.dev/gang-size": size} if size else {})}
    spec = {"containers": [{"name": "c"}], "restartPolicy": "Never"}
    template = {"metadata": {"annotations": marks}, "spec": spec}
    file = tmp_path / "train.yaml"
    file.write_text(
        json.dumps({"kind": kind, "metadata": {"name": "t"}, "spec": {"template": template}})
    )
    said = weft("parse", file, "--output", "json")
    (row,) = json.loads(said.out)
    assert said.code == code
    assert (row["group"]["name"], row["group"]["least"]) == (f"{kind}/t", size and int(size))
    assert bool(row["warnings"]) == bool(code)


def test_members_that_name_another_scheduler_or_priority_are_named(
    weft: Any, tmp_path: Path
) -> None:
    def member(name: str, scheduler: str, urgency: str) -> str:
        said = {"gang.scheduling.koordinator.sh/name": "train"}
        said["gang.scheduling.koordinator.sh/min-available"] = "3"
        meta = {"name": name, "namespace": "ml", "annotations": said}
        spec = {"schedulerName": scheduler, "priorityClassName": urgency}
        spec["containers"] = [{"name": "c", "image": "i"}]  # type: ignore[assignment]
        return json.dumps({"kind": "Pod", "metadata": meta, "spec": spec})

    file = tmp_path / "train.yaml"
    pods = (("a", "weft", "low"), ("b", "weft", "low"), ("c", "volcano", "high"))
    file.write_text("\n---\n".join(member(*each) for each in pods))
    said = weft("parse", file, "--output", "json")
    notes = {row["name"]: row["warnings"] for row in json.loads(said.out)}
    priorities = (
        "pods of group ml/train have priorities high and low: the highest counts for all; set one "
        "priority on all"
    )
    why = "they start together only if both are Weft's; write one schedulerName on all"
    assert notes["a"] == notes["b"]
    assert notes["a"] == [
        f"pod ml/c of group ml/train has schedulerName volcano, and this pod weft: {why}",
        priorities,
    ]
    assert notes["c"] == [
        f"pods ml/a, ml/b of group ml/train have schedulerName weft, and this pod volcano: {why}",
        priorities,
    ]
