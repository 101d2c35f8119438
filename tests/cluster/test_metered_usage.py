"""`weft usage --prometheus` on a real Prometheus: its sums are those of the samples."""

import json
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from test_trace import command, remembering

SCRAPED_S = 30
HOURS = 2
GROUPS = {
    "namespace:weft_gpus_held": ("namespace", "gpu_hours"),
    "namespace:weft_gpus_used": ("namespace", "used_gpu_hours"),
    "namespace:weft_gpu_memory_held_gib": ("namespace", "gib_hours"),
    "workload:weft_gpus_held": ("workload", "gpu_hours"),
    "workload:weft_gpu_memory_held_gib": ("workload", "gib_hours"),
    "label:weft_gpus_held": ("label:team", "gpu_hours"),
    "label:weft_gpu_memory_held_gib": ("label:team", "gib_hours"),
    "queue:weft_gpus_held": ("queue", "gpu_hours"),
    "queue:weft_gpu_memory_held_gib": ("queue", "gib_hours"),
    "queue:weft_gpus_borrowed": ("queue", "borrowed_gpu_hours"),
}
TOTALS = {
    "cluster:weft_gpus": "capacity_gpu_hours",
    "cluster:weft_gpus_stranded": "stranded_gpu_hours",
    "cluster:weft_gpu_memory_lent_gib": "lent_gib_hours",
}


def samples(seed: int, end_s: int) -> tuple[str, dict[tuple[str, str], float]]:
    """A history in which groups come and go, and the hours that it has of each rule and group."""
    chance, hours = random.Random(seed), defaultdict[tuple[str, str], float](float)
    names = [
        *((rule, group) for rule in GROUPS for group in ("a", "b<i>")),
        *((r, "") for r in TOTALS),
    ]
    lines = defaultdict[str, list[str]](list)
    for rule, group in names:
        by, _, key = GROUPS[rule][0].partition(":") if rule in GROUPS else ("", "", "")
        labels = f'{{{by}="{group}"}}' if by else ""
        if key:  # and another label has the same values
            labels = f'{{label="{key}",value="{group}"}}'
            more = f'{rule}{{label="tier",value="{group}"}} 1'
            lines[rule] += [f"{more} {at}" for at in range(end_s - 3_600, end_s, SCRAPED_S)]
        for at in range(end_s - 3 * 3_600, end_s + 600, SCRAPED_S):
            if group.startswith("b") and not end_s - 3_600 < at <= end_s - 1_800:
                lines[rule].append(f"{rule}{labels} 0 {at}")
                continue
            value = chance.randrange(0, 40) / 4
            lines[rule].append(f"{rule}{labels} {value} {at}")
            if end_s - HOURS * 3_600 < at <= end_s:
                hours[rule, group] += value * SCRAPED_S / 3_600
    text = "".join(
        f"# TYPE {rule} gauge\n" + "\n".join(said) + "\n" for rule, said in lines.items()
    )
    return text + "# EOF\n", hours


@pytest.mark.parametrize("seed", range(2))
def test_sums_are_those_of_the_samples(seed: int, tmp_path: Path) -> None:
    end_s = (int(time.time()) - 3_600) // SCRAPED_S * SCRAPED_S
    text, hours = samples(seed, end_s)
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end_s))
    with remembering(text, tmp_path) as url:
        asked = ("usage", "--prometheus", url, "--hours", HOURS, "--end", end)
        for by in ("namespace", "queue", "workload", "label:team"):
            said = command(*asked, "--by", by, "--output", "json")
            assert said.returncode == 0, said.stderr
            told: dict[str, Any] = json.loads(said.stdout)
            assert told["hours"] == HOURS
            for rule, name in TOTALS.items():
                assert told[name] == pytest.approx(hours[rule, ""], abs=1e-6)
            rows = {row["group"]: row for row in told["rows"]}
            assert {*rows} == {"a", "b<i>"}
            for rule, (label, name) in GROUPS.items():
                for group, row in rows.items() if label == by else ():
                    assert row[name] == pytest.approx(hours[rule, group], abs=1e-6)
        page = command(*asked, "--output", "html")
        assert page.returncode == 0, page.stderr
        assert "b&lt;i&gt;" in page.stdout
        assert "<i>" not in page.stdout
        early = command("usage", "--prometheus", url, "--end", "2001-01-01T00:00:00Z")
        assert early.returncode == 1
        assert "recording rules" in early.stderr
        unknown = command(*asked, "--by", "label:app")
        assert unknown.returncode == 1
        assert "name the label in usage.labels" in unknown.stderr


def test_what_the_server_does_not_have_is_unknown_and_not_nothing(tmp_path: Path) -> None:
    """Two queues, of one of which no memory is kept; nothing is known of the whole cluster."""
    end_s = (int(time.time()) - 3_600) // SCRAPED_S * SCRAPED_S
    times = range(end_s - 7_200, end_s + 600, SCRAPED_S)
    lines = ["# TYPE queue:weft_gpus_held gauge"]
    lines += [f'queue:weft_gpus_held{{queue="{name}"}} 1 {at}' for name in "ab" for at in times]
    lines += ["# TYPE queue:weft_gpu_memory_held_gib gauge"]
    lines += [f'queue:weft_gpu_memory_held_gib{{queue="a"}} 2 {at}' for at in times]
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end_s))
    with remembering("\n".join([*lines, "# EOF", ""]), tmp_path) as url:
        asked = ("usage", "--prometheus", url, "--by", "queue", "--hours", 1, "--end", end)
        told: dict[str, Any] = json.loads(command(*asked, "-o", "json").stdout)
        assert told["rows"] == [
            {"group": "a", "gpu_hours": 1, "gib_hours": 2, "borrowed_gpu_hours": None},
            {"group": "b", "gpu_hours": 1, "gib_hours": None, "borrowed_gpu_hours": None},
        ]
        assert {told[name] for name in (*TOTALS.values(), "idle_gpu_hours")} == {None}
        table = command(*asked)
        assert table.stdout.splitlines()[2].split() == ["b", "1.00", "unknown", "unknown"]
        assert "GPU-hours of all cards unknown, idle unknown" in (table.stdout + table.stderr)
        rows = command(*asked, "-o", "csv").stdout.splitlines()
        assert rows == ["queue,gpu_hours,gib_hours,borrowed_gpu_hours", "a,1.0,2.0,", "b,1.0,,"]
        assert "<td>unknown</td>" in command(*asked, "-o", "html").stdout
