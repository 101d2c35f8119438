"""`weft usage --prometheus` on a real Prometheus: its sums are those of the samples."""

import json
import random
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from needed_tools import NO_PROMETHEUS, lacking
from test_trace import command, remembering

SCRAPED_S = 30
HOURS = 2
RULES = Path(__file__).parents[2] / "deploy" / "monitoring" / "rules.yaml"
BY = {"namespace": "namespace", "workload": "workload", "label": "label:team", "queue": "queue"}
GROUPS = {
    **{f"{name}:weft_gpus_held": (by, "gpu_hours") for name, by in BY.items()},
    **{f"{name}:weft_gpus_used": (by, "used_gpu_hours") for name, by in BY.items()},
    **{
        f"{name}:weft_gpu_memory_{what}_gib": (by, f"{hours}gib_hours")
        for name, by in BY.items()
        for what, hours in (
            *(("held", ""), ("idle", "idle_")),
            *(("lent", "lent_"), ("borrowed", "borrowed_")),
        )
    },
    "queue:weft_gpus_borrowed": ("queue", "borrowed_gpu_hours"),
}
TOTALS = {
    "cluster:weft_gpus": "capacity_gpu_hours",
    "cluster:weft_gpus_used": "used_gpu_hours",
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
        memory = ("idle_gib_hours", "lent_gib_hours", "borrowed_gib_hours")
        names = ("used_gpu_hours", *memory, "borrowed_gpu_hours")
        unknown = dict.fromkeys(names, None)
        assert told["rows"] == [
            {"group": "a", "gpu_hours": 1, "gib_hours": 2, **unknown},
            {"group": "b", "gpu_hours": 1, "gib_hours": None, **unknown},
        ]
        assert {told[name] for name in (*TOTALS.values(), "idle_gpu_hours")} == {None}
        table = command(*asked)
        assert table.stdout.splitlines()[2].split() == ["b", "1.00", *["unknown"] * 6]
        assert "GPU-hours of all cards unknown, idle unknown" in (table.stdout + table.stderr)
        rows = command(*asked, "-o", "csv").stdout.splitlines()
        more = ",".join((*memory, "borrowed_gpu_hours"))
        head = f"queue,gpu_hours,used_gpu_hours,gib_hours,{more}"
        assert rows == [head, "a,1.0,,2.0,,,,", "b,1.0,,,,,,"]
        assert "<td>unknown</td>" in command(*asked, "-o", "html").stdout


def test_hours_cost_what_their_model_does(tmp_path: Path) -> None:
    """The models' series are younger than the groups': what is older costs as other models do."""
    end_s = (int(time.time()) - 3_600) // SCRAPED_S * SCRAPED_S
    times = range(end_s - 7_200, end_s + 600, SCRAPED_S)
    held = {"a": {"NVIDIA-A100-SXM4-40GB": 2, "NVIDIA-T4": 1}, "b": {"NVIDIA-T4": 0.5}}
    lines = ["# TYPE namespace:weft_gpus_held gauge"]
    for name, models in held.items():
        series = f'namespace:weft_gpus_held{{namespace="{name}"}} {sum(models.values())}'
        lines += [f"{series} {at}" for at in times]
    lines.append("# TYPE namespace_model:weft_gpus_held gauge")
    for name, models in held.items():
        for model, gpus in models.items():
            series = f'namespace_model:weft_gpus_held{{model="{model}",namespace="{name}"}} {gpus}'
            lines += [f"{series} {at}" for at in times if name == "a" or at > end_s - 1_800]
    prices = tmp_path / "prices.yaml"
    prices.write_text("A100: 2.5\n")
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end_s))
    with remembering("\n".join([*lines, "# EOF", ""]), tmp_path) as url:
        asked = ("usage", "--prometheus", url, "--hours", 1, "--end", end, "--prices", prices, "-o")
        bare = command(*asked, "json")
        prices.write_text("A100: 2.5\nT4: 0.5\ndefault: 10\n")
        priced = command(*asked, "json")
        table = command(*asked, "csv").stdout.splitlines()
    for said, costs in ((bare, {"a": 5, "b": 0}), (priced, {"a": 5.5, "b": 0.125 + 2.5})):
        assert said.returncode == 0, said.stderr
        rows: list[dict[str, Any]] = json.loads(said.stdout)["rows"]
        assert {row["group"]: row["cost"] for row in rows} == pytest.approx(costs)
        models = {row["group"]: row["gpu_hours_by_model"] for row in rows}
        assert models["a"] == pytest.approx(held["a"])
        assert models["b"] == pytest.approx({"NVIDIA-T4": 0.25, "(unknown model)": 0.25})
    assert [float(row.split(",")[-1]) for row in table[1:]] == pytest.approx([5.5, 2.625])
    assert not priced.stderr
    told = f"{prices}: no price for (unknown model) (0.25 GPU-hours), NVIDIA-T4 (1.25 GPU-hours)"
    assert told in " ".join(bare.stderr.split())


def billed(
    lines: list[str], end_s: int, prices: str, tmp_path: Path, *options: object
) -> tuple[dict[str, Any], str]:
    """Have `weft usage` bill a server that has these series, with these prices; return what it
    says, and its warnings."""
    path = tmp_path / "prices.yaml"
    path.write_text(prices)
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end_s))
    with remembering("\n".join([*lines, "# EOF", ""]), tmp_path) as url:
        asked = ("usage", "--prometheus", url, *options, "--end", end, "--prices", path)
        said = command(*asked, "-o", "json")
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout), said.stderr


def test_hours_by_model_beyond_those_held_cost_only_what_is_held(tmp_path: Path) -> None:
    """The server says 12 hours of a queue, and 36 by model; of another it says the same twice."""
    end_s = (int(time.time()) - 3_600) // SCRAPED_S * SCRAPED_S
    times = range(end_s - 7_200, end_s + 600, SCRAPED_S)
    held = {"d": (12, {"NVIDIA-T4": 27, "NVIDIA-A100": 9}), "e": (0.3, {"NVIDIA-T4": 0.3})}
    lines = ["# TYPE queue:weft_gpus_held gauge"]
    for name, (gpus, _) in held.items():
        lines += [f'queue:weft_gpus_held{{queue="{name}"}} {gpus} {at}' for at in times]
    lines.append("# TYPE queue_model:weft_gpus_held gauge")
    for name, (_, models) in held.items():
        for model, gpus in models.items():
            series = f'queue_model:weft_gpus_held{{model="{model}",queue="{name}"}} {gpus}'
            lines += [f"{series} {at}" for at in times]
    asked = ("--by", "queue", "--hours", 1)
    told, stderr = billed(lines, end_s, "A100: 4\ndefault: 1\n", tmp_path, *asked)
    rows = {row["group"]: row for row in told["rows"]}
    assert rows["d"]["gpu_hours"] == pytest.approx(12)
    assert rows["d"]["gpu_hours_by_model"] == pytest.approx({"NVIDIA-T4": 9, "NVIDIA-A100": 3})
    assert rows["d"]["cost"] == pytest.approx(9 + 4 * 3)
    assert rows["e"]["cost"] == pytest.approx(0.3)
    warned = " ".join(stderr.split())
    assert "by model than in all for d (36.00 instead of 12.00 GPU-hours)" in warned
    assert " e (" not in warned


def test_hours_before_the_rules_are_whole_and_of_an_unknown_model_once(tmp_path: Path) -> None:
    """The server has the first rules for three of four hours, and those by model for one."""
    end_s = (int(time.time()) - 3_600) // SCRAPED_S * SCRAPED_S
    lines = ["# TYPE namespace:weft_gpus_held gauge"]
    times = range(end_s - 3 * 3_600 + SCRAPED_S, end_s + 600, SCRAPED_S)
    lines += [f'namespace:weft_gpus_held{{namespace="a"}} 3 {at}' for at in times]
    lines.append("# TYPE namespace_model:weft_gpus_held gauge")
    times = range(end_s - 3_600 + SCRAPED_S, end_s + 600, SCRAPED_S)
    for model, gpus in {"NVIDIA-A100": 2, "(unknown model)": 1}.items():
        series = f'namespace_model:weft_gpus_held{{model="{model}",namespace="a"}} {gpus}'
        lines += [f"{series} {at}" for at in times]
    prices = "A100: 2.5\ndefault: 1\n"
    told, stderr = billed(lines, end_s, prices, tmp_path, "--hours", 4)
    assert not stderr
    (row,) = told["rows"]
    assert row["gpu_hours"] == pytest.approx(9)
    models = {"NVIDIA-A100": 2, "(unknown model)": 1 + 2 * 3}
    assert row["gpu_hours_by_model"] == pytest.approx(models)
    assert row["cost"] == pytest.approx(2.5 * 2 + 7)


@pytest.mark.parametrize(
    ("by", "named", "rest"),
    [
        ("workload", "a", "(others)"),
        ("queue", "team-a", "other"),
        ("queue", "other", "other queues"),
    ],
)
def test_what_is_used_of_groups_that_are_not_told_by_name_is_of_the_others(
    by: str, named: str, rest: str, tmp_path: Path
) -> None:
    """Sums stay whole: what is used is known of every group, what is held only of the most
    workloads and of the configured queues."""
    end_s = (int(time.time()) - 3_600) // SCRAPED_S * SCRAPED_S
    times = range(end_s - 7_200, end_s + 600, SCRAPED_S)
    lines = []
    for rule, values in (
        ("held", {named: 3, rest: 2}),
        ("used", {named: 1, "b": 0.5, "c": 0.25}),
    ):
        lines.append(f"# TYPE {by}:weft_gpus_{rule} gauge")
        for name, value in values.items():
            series = f'{by}:weft_gpus_{rule}{{{by}="{name}"}}'
            lines += [f"{series} {value} {at}" for at in times]
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end_s))
    with remembering("\n".join([*lines, "# EOF", ""]), tmp_path) as url:
        asked = ("usage", "--prometheus", url, "--by", by, "--hours", 1, "--end", end)
        told: dict[str, Any] = json.loads(command(*asked, "-o", "json").stdout)
    used = {row["group"]: row["used_gpu_hours"] for row in told["rows"]}
    assert used == {named: pytest.approx(1), rest: pytest.approx(0.75)}


def held_by_model(add: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """Ask for what two schedulers, both scraped, tell that pods hold, in all and of each model.
    What a queue's limits count is another number."""
    add("weft_queue_held", 7, queue="red", amount="gpus", instance="a")
    for by in BY:
        group = {"label": "team", "value": "red"} if by == "label" else {by: "red"}
        samples = []
        for instance in "ab":
            add(f"weft_{by}_gpus_held", 2.5, **group, instance=instance)
        labels = ",".join(f'{key}="{said}"' for key, said in group.items())
        whole = {"labels": f"{by}:weft_gpus_held{{{labels}}}", "value": 2.5}
        yield {"expr": f"{by}:weft_gpus_held", "eval_time": "2m", "exp_samples": [whole]}
        for model, gpus in (("A100", 2), ("T4", 0.5)):
            for instance in "ab":
                add(f"weft_{by}_gpus_held_by_model", gpus, **group, model=model, instance=instance)
            labels = ",".join(f'{key}="{said}"' for key, said in {**group, "model": model}.items())
            samples.append({"labels": f"{by}_model:weft_gpus_held{{{labels}}}", "value": gpus})
        yield {"expr": f"{by}_model:weft_gpus_held", "eval_time": "2m", "exp_samples": samples}


@pytest.mark.parametrize("seed", range(3))
def test_the_rules_sum_up_what_is_used_and_held_by_every_grouping_alike(
    seed: int, tmp_path: Path
) -> None:
    """In Prometheus' own rule engine: pods use several GPUs with several containers, and their
    agent is scraped twice while it restarts."""
    promtool = shutil.which("promtool")
    if promtool is None:
        lacking(NO_PROMETHEUS)
    chance, cards = random.Random(seed), 0.0
    series = list[dict[str, str]]()
    sums = {
        by: defaultdict[str, float](float) for by in ("namespace", "workload", "queue", "label")
    }

    def add(metric: str, number: float, **labels: str) -> None:
        text = ",".join(f'{key}="{said}"' for key, said in labels.items())
        series.append({"series": f"{metric}{{{text}}}", "values": f"{number}x5"})

    for number in range(12):
        pod = {"namespace": chance.choice("xy"), "pod": f"p{number}", "job": "weft/weft-agent"}
        groups = {"workload": f"{pod['namespace']}/Job/{chance.choice('ab')}"}
        groups["label"] = chance.choice(("red", "(no label)"))
        groups["queue"] = chance.choice(("team-a", pod["namespace"]))
        for scraped in range(chance.choice((1, 2))):
            on = {**pod, "instance": f"i{scraped}"}
            add("weft_agent_pod_workload", 1, **on, workload=groups["workload"])
            add("weft_agent_pod_queue", 1, **on, queue=groups["queue"])
            add("weft_agent_pod_label", 1, **on, label="team", value=groups["label"])
        for gpu in range(chance.choice((0, 1, 3))):
            for container in "ab"[: chance.choice((1, 2))]:
                percent = 25 * chance.randrange(5)  # whose sums are exact
                labels = {"gpu": str(gpu), "container": container}
                add("DCGM_FI_DEV_GPU_UTIL", percent, **pod, **labels, instance="i0")
                for by, group in {"namespace": pod["namespace"], **groups}.items():
                    sums[by][group] += percent / 100
            percent = 25 * chance.randrange(5)  # of the card, whoever used it
            cards += percent / 100
            add(
                "DCGM_FI_DEV_GPU_UTIL", percent, job=pod["job"], gpu=str(gpu), instance=f"c{number}"
            )
    whole = {"labels": "cluster:weft_gpus_used", "value": cards}
    asked = [{"expr": "cluster:weft_gpus_used", "eval_time": "2m", "exp_samples": [whole]}]
    for by, totals in sums.items():
        label = 'label="team",value' if by == "label" else by
        samples = [
            {"labels": f'{by}:weft_gpus_used{{{label}="{group}"}}', "value": total}
            for group, total in totals.items()
        ]
        asked.append({"expr": f"{by}:weft_gpus_used", "eval_time": "2m", "exp_samples": samples})
        total = {"labels": "{}", "value": sum(sums["namespace"].values())}
        asked.append(
            {"expr": f"sum({by}:weft_gpus_used)", "eval_time": "2m", "exp_samples": [total]}
        )
    asked += held_by_model(add)
    test = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    file = tmp_path / "used.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}))
    done = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
