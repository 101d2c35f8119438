"""The chart's values, its schema and its README say the same."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from rendered_manifests import CHART, chart_files, schema

from weft import __version__

FREE = ("configuration", "profiles")


def leaves(values: dict[str, Any], known: dict[str, Any], at: str = "") -> Iterator[str]:
    """The path of every value that the schema does not take apart further."""
    for name, value in values.items():
        kind = known.get(name, {})
        if "properties" in kind and name not in FREE:
            yield from leaves(value, kind["properties"], f"{at}{name}.")
        else:
            yield at + name


def of_schema(known: dict[str, Any], at: str = "") -> Iterator[str]:
    for name, kind in known.items():
        if "properties" in kind:
            yield from of_schema(kind["properties"], f"{at}{name}.")
        elif name != "global":
            yield at + name


VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.parametrize("path", list(chart_files()), ids=lambda path: path.name)
def test_the_charts_generated_files_are_current(path: Any) -> None:
    assert path.read_text() == chart_files()[path], "run make manifests"


def test_every_value_is_in_the_schema_and_in_the_readme() -> None:
    known = schema()["properties"]
    rows = re.findall(r"^\| `([\w.]+)` \|", (CHART / "README.md").read_text(), re.MULTILINE)
    assert len(set(rows)) == len(rows)
    assert sorted(leaves(VALUES, known)) == sorted(of_schema(known)) == sorted(rows)


def test_every_value_has_a_comment_which_the_readme_shows() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| .* \| (.*) \|$", (CHART / "README.md").read_text(), re.M)
    assert {name for name, meaning in rows if len(meaning) < 10} == set()
    assert len(rows) == sum(1 for _ in leaves(VALUES, schema()["properties"]))


def test_the_readmes_defaults_are_the_values() -> None:
    text = (CHART / "README.md").read_text()
    for name, default in re.findall(r"^\| `([\w.]+)` \| `([^`]*)` \|", text, re.MULTILINE):
        value: Any = VALUES
        for part in name.split("."):
            value = value[part]
        shown = yaml.safe_load(default)
        assert value == shown, name


def test_the_schema_refuses_what_weft_does_not_know_at_any_depth() -> None:
    open_ended = []

    def look(kind: Any, at: str) -> None:
        if isinstance(kind, dict):
            if "properties" in kind and kind.get("additionalProperties") is not False:
                open_ended.append(at)
            for name, inner in kind.items():
                look(inner, f"{at}.{name}")

    look(json.loads((CHART / "values.schema.json").read_text()), "")
    assert open_ended == []


def test_the_charts_version_is_wefts() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
