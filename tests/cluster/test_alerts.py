"""Each alert fires in Prometheus' own rule engine where it must, and nowhere else."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_cases import CASES, HEALTHY, MINUTES, Case
from needed_tools import lacking

RULES = Path(__file__).parents[2] / "deploy" / "monitoring" / "rules.yaml"
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}


def asked(minute: int, alert: str, case: Case | None) -> dict[str, Any]:
    """One question of promtool's: which alerts of this name fire at that minute."""
    expected = []
    if case is not None:
        rule = ALERTS[alert]
        notes = rule["annotations"] | {"summary": case.summary}
        labels = {"severity": rule["labels"]["severity"], **case.labels}
        expected = [{"exp_labels": labels, "exp_annotations": notes}]
    return {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": expected}


def given(case: Case) -> list[dict[str, str]]:
    series = {name: v for name, v in (HEALTHY | case.series).items() if v is not None}
    return [{"series": name, "values": values} for name, values in series.items()]


def trouble(alert: str, case: Case) -> dict[str, Any]:
    """The trouble of this alert: it fires, and not before its time."""
    questions = [asked(case.at, alert, case)]
    questions += [asked(case.since - 1, alert, None)] if case.since else []
    return {"interval": "1m", "input_series": given(case), "alert_rule_test": questions}


def aside(alert: str, case: Case) -> dict[str, Any]:
    """The same trouble: no other alert fires at its end."""
    others = [asked(MINUTES, other, None) for other in sorted(set(ALERTS) - {alert})]
    return {"interval": "1m", "input_series": given(case), "alert_rule_test": others}


def healthy() -> dict[str, Any]:
    quiet = [asked(minute, alert, None) for alert in ALERTS for minute in (30, 60, MINUTES)]
    series = [{"series": name, "values": values} for name, values in HEALTHY.items()]
    return {"interval": "1m", "input_series": series, "alert_rule_test": quiet}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        lacking("no promtool command: apt-get install -y prometheus")
    return found


def judged(promtool: str, folder: Path, files: dict[str, dict[str, Any]]) -> str:
    """The objections of promtool to these files of tests; "" for none."""
    for name, file in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"rule_files": [str(RULES)], **file}))
    done = subprocess.run(
        [promtool, "test", "rules", *(str(folder / f"{name}.yaml") for name in files)],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def alone(folder: Path, alert: str) -> str:
    """A file of rules with this one, which is quicker to ask."""
    path = folder / f"only-{alert}.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [ALERTS[alert]]}]}))
    return str(path)


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == set(ALERTS)


def test_no_alert_fires_where_nothing_is_wrong(promtool: str, tmp_path: Path) -> None:
    assert judged(promtool, tmp_path, {"healthy": {"tests": [healthy()]}}) == ""


def test_each_alert_fires_and_not_before_its_time(promtool: str, tmp_path: Path) -> None:
    files = {
        name: {"rule_files": [alone(tmp_path, name)], "tests": [trouble(name, case)]}
        for name, case in CASES.items()
    }
    assert judged(promtool, tmp_path, files) == ""


def test_no_trouble_sets_off_another_alert(promtool: str, tmp_path: Path) -> None:
    tests = [aside(name, case) for name, case in CASES.items()]
    file = {"evaluation_interval": "10m", "tests": tests}
    assert judged(promtool, tmp_path, {"aside": file}) == ""


def test_a_case_that_does_not_fire_is_noticed(promtool: str, tmp_path: Path) -> None:
    name = "WeftNoLeader"
    test = trouble(name, CASES[name]._replace(series={}))
    file = {"rule_files": [alone(tmp_path, name)], "tests": [test]}
    assert name in judged(promtool, tmp_path, {"quiet": file})
