"""Alerts, their runbook and the metrics that they ask for say the same."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RUNBOOK = (ROOT / "docs" / "howto" / "runbook.md").read_text()
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "deploy/monitoring/rules.yaml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
OTHERS = {"up", "apiserver_validating_admission_policy_check_total"}
"""Prometheus' own, and the API server's: asked of a real one in tests/cluster."""
OF_PROMETHEUS = {"job", "instance"}
SELECTOR = re.compile(r"\b([a-z][a-z0-9]*_\w+|up)\b(?:\{([^}]*)\})?(?=[\s\[),]|$)")
MATCHER = re.compile(r'(\w+)(=~|!=|=|!~)"((?:[^"\\]|\\.)*)"')
WORDS = {"clamp_min", "label_replace"}


def rows() -> dict[str, str]:
    """Each metric's row in the reference."""
    pages = ("reference/metrics.md", "reference/telemetry.md", "howto/run-the-extender.md")
    lines = [line for page in pages for line in (DOCS / page).read_text().splitlines()]
    return {m[1]: line for line in lines if (m := re.match(r"\| `(\w+)` \|", line))}


def selectors(expr: str) -> list[tuple[str, str]]:
    return [(m[1], m[2] or "") for m in SELECTOR.finditer(expr) if m[1] not in WORDS]


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    sections = re.findall(r"^### (\w+)$", RUNBOOK, re.MULTILINE)
    assert sections == list(RULES)
    for text in re.split(r"^### ", RUNBOOK, flags=re.MULTILINE)[1:]:
        alert, *parts = [part for part in re.split(r"\n\n", text.strip()) if part]
        means, see, *do = parts
        assert see.startswith("```console\n$ "), alert
        assert len(means) > 30, alert
        assert do, alert


@pytest.mark.parametrize("name", RULES)
def test_an_alert_says_how_bad_it_is_and_where_to_read_on(name: str) -> None:
    rule = RULES[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert f"`{rule['labels']['severity']}`: " in RUNBOOK
    assert rule["annotations"]["runbook_url"] == f"docs/howto/runbook.md#{name.lower()}"
    assert len(rule["annotations"]["summary"]) > 15


@pytest.mark.parametrize("name", RULES)
def test_what_an_alert_asks_for_is_in_the_reference_with_labels_and_values(name: str) -> None:
    known = rows()
    found = selectors(RULES[name]["expr"])
    assert found
    for metric, matchers in found:
        if metric in OTHERS:
            continue
        assert metric in known, metric
        _, _, labels, *_ = known[metric].split("|")
        for label, operator, value in MATCHER.findall(matchers):
            if label in OF_PROMETHEUS:
                continue
            assert f"`{label}`" in labels, f"{metric} has no label {label}"
            for word in value.split("|") if "~" in operator else [value]:
                said = f"`{word}`" in known[metric] or re.search(r"\W\.", word)
                assert said or label in ("code", "metric"), f"{metric}: {label}={word}"
    grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", RULES[name]["expr"])
    for label in {each.strip() for group in grouped for each in group.split(",")}:
        has = [known[m].split("|")[2] for m, _ in found if m in known]
        is_there = label in OF_PROMETHEUS or any(f"`{label}`" in labels for labels in has)
        assert is_there or {m for m, _ in found} & OTHERS, label


def test_every_metric_that_is_asked_for_is_in_the_code() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src" / "weft").rglob("*.py"))
    names = {metric for rule in RULES.values() for metric, _ in selectors(rule["expr"])} - OTHERS
    assert len(names) > 30
    assert [n for n in names if f'"{n.removesuffix("_total")}"' not in source] == []


def test_the_expressions_are_taken_apart() -> None:
    """A typo in a pattern above must not pass for a true expression."""
    expr = 'max by (node) (weft_a{x=~"a|b"}) unless on (node) label_replace(up{j="k"}, "a", "b")'
    assert selectors(expr) == [("weft_a", 'x=~"a|b"'), ("up", 'j="k"')]
    assert selectors("increase(weft_b_total[1h]) > 3") == [("weft_b_total", "")]
