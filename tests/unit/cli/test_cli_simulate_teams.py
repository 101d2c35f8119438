"""Priorities and queues in `weft simulate`: shown where a trace or options have them, and nowhere
else; what has no effect, or cannot be, is refused."""

import csv
import io
import json
from pathlib import Path

import pytest
from commands import Weft

from weft.cli.tables import PREEMPTION_CSV_COLUMNS
from weft.lab.experiment.spec.measures import BY_NAME

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn,64000,65536,1,V100M16\n"
HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"
URGENT = f"{HEADER},priority\nnotebook,1,1,1,1000,0,100,0,\nurgent,1,1,1,1000,40,60,40,9\n"
QUEUES = f"{HEADER},queue\na,1,1,1,1000,0,100,0,a\nb,1,1,1,1000,10,60,10,b\n"
SETTINGS = """\
apiVersion: weft.dev/v1
kind: WeftConfiguration
queues: {order: fair, reclaim: true, teams: [{name: b, guarantee: {gpus: 1}}]}
"""


@pytest.fixture
def trace(tmp_path: Path) -> list[object]:
    """One card: a notebook has it, and an urgent pod comes at 40."""
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(URGENT)
    (tmp_path / "weft.yaml").write_text(SETTINGS)
    files = ("--nodes", tmp_path / "nodes.csv", "--pods", tmp_path / "pods.csv")
    return [*files, "--policy", "least-stranding", "--no-timing"]


@pytest.fixture
def teams(trace: list[object], tmp_path: Path) -> list[object]:
    """One card: a pod of queue a has it when one of b comes at 10, to which it is promised."""
    (tmp_path / "pods.csv").write_text(QUEUES)
    return [*trace, "--timed", "--queues", tmp_path / "weft.yaml"]


def test_table_csv_json_and_report_have_what_preemption_costs(
    weft: Weft, trace: list[object], tmp_path: Path
) -> None:
    assert "preempted GPU s  preempted pods" in weft("simulate", *trace, "--timed").out
    row = next(csv.DictReader(io.StringIO(weft("simulate", *trace, "--timed", "-o", "csv").out)))
    assert (row["preemptions"], row["preempted_gpu_s"]) == ("1", "70.0")
    assert PREEMPTION_CSV_COLUMNS.keys() <= BY_NAME.keys(), "named as in experiments"
    results = json.loads(weft("simulate", *trace, "--timed", "-o", "json").out)
    assert results["runs"][0]["preemption"] == {"preempted": 1, "lost_gpu_s": 70.0}
    assert results["summary"][0]["timed"]["preempted_gpu_s"] == 70.0
    weft("simulate", *trace, "--timed", "--report", tmp_path / "report")
    assert "GPU time lost to preemption" in (tmp_path / "report" / "report.html").read_text()


def test_preemption_is_off_where_asked_and_its_grace_is_an_option(
    weft: Weft, trace: list[object]
) -> None:
    for form in ("table", "csv", "json"):
        assert "preempt" not in weft("simulate", *trace, "--timed", "--no-preempt", "-o", form).out
    at_once = weft("simulate", *trace, "--timed", "--grace-s", 0, "-o", "json").out
    assert json.loads(at_once)["runs"][0]["preemption"]["lost_gpu_s"] == 40.0


def test_pods_move_where_asked_and_what_they_lose_is_told(weft: Weft, tmp_path: Path) -> None:
    """The share comes while node b's card is taken; at 160 it is asked to go there, at 190 gone."""
    (tmp_path / "nodes.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\na,9000,9000,2,T4\nb,9000,9000,1,T4\n"
    )
    pods = "first,1,1,1,1000,0,50,0,\nshare,1,1,1,600,1,1001,1,40\nlarge,1,1,2,1000,100,1100,100,\n"
    (tmp_path / "pods.csv").write_text(f"{HEADER},restart_s\n{pods}")
    files = ("--nodes", tmp_path / "nodes.csv", "--pods", tmp_path / "pods.csv", "--no-timing")
    asked = ["simulate", *files, "--policy", "best-fit", "--timed", "-o", "json"]
    (stays,) = json.loads(weft(*asked).out)["runs"]
    (moves,) = json.loads(weft(*asked, "--move").out)["runs"]
    assert "moves" not in stays
    assert stays["sizes"][0]["mean_s"] == 901.0
    assert moves["sizes"][0] == {
        "several": True,
        "pods": 1,
        "never_started": 0,
        "mean_s": 90.0,
        "p99_s": 90.0,
    }
    assert (moves["moves"]["moved"], moves["moves"]["lost_gpu_s"]) == (1, 24.0)


def test_table_csv_json_and_report_have_the_queues(
    weft: Weft, teams: list[object], tmp_path: Path
) -> None:
    """The pod of a goes at 40; the one of b has its card until 90, when the last one starts."""
    table = weft("simulate", *teams).out
    assert "held % when wanted" in table
    row = next(csv.DictReader(io.StringIO(weft("simulate", *teams, "-o", "csv").out)))
    assert (row["a.preempted_gpu_s"], row["b.guarantee_percent"]) == ("40.0", "100.0")
    assert (row["b.wait_mean_s"], row["a.guarantee_percent"]) == ("30.0", "")
    results = json.loads(weft("simulate", *teams, "-o", "json").out)
    queues = results["runs"][0]["queues"]
    assert [queue["queue"] for queue in queues] == ["a", "b"]
    assert [queue["held_percent"] for queue in queues] == [44.444, 55.556]
    assert [queue["held_percent"] for queue in results["summary"][0]["timed"]["queues"]] == [
        44.444,
        55.556,
    ]
    weft("simulate", *teams, "--report", tmp_path / "report")
    assert "Held when wanted, %" in (tmp_path / "report" / "report.html").read_text()


def test_a_trace_without_queues_says_no_word_of_them(weft: Weft, trace: list[object]) -> None:
    for form in ("table", "csv", "json"):
        assert "queues" not in weft("simulate", *trace, "--timed", "-o", form).out
        assert "guarantee" not in weft("simulate", *trace, "--timed", "-o", form).out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--queues", "weft.yaml"], "--queues: requires a run with times; add --timed"),
        (["--no-preempt"], "--preempt: requires a run with times; add --timed"),
        (["--grace-s", "5"], "--grace-s: requires a run with times; add --timed"),
        (["--move"], "--move: requires a run with times; add --timed"),
        (["--timed", "--queues", "weft.yaml", "--no-preempt"], "has no effect on queues.reclaim"),
        (["--timed", "--queues", "absent.yaml"], "absent.yaml"),
        (["--timed", "--queues", "nodes.csv"], "apiVersion"),
    ],
)
def test_what_has_no_effect_or_cannot_be_is_refused(
    weft: Weft, trace: list[object], tmp_path: Path, options: list[str], says: str
) -> None:
    given = [tmp_path / each if "." in each else each for each in options]
    said = weft("simulate", *trace, *given)
    assert said.code == 1
    assert says in said.err.replace("\n", " ")


def test_a_queue_that_is_no_name_is_an_error_of_its_cell(
    weft: Weft, trace: list[object], tmp_path: Path
) -> None:
    (tmp_path / "pods.csv").write_text(QUEUES.replace(",b\n", ",no name\n"))
    said = weft("simulate", *trace, "--timed")
    assert said.code == 1
    assert "line 3, column queue: 'no name' is not a name" in said.err.replace("\n", " ")
