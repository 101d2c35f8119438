"""The columns `gang`, `gang_min` and `queue` of a pod list: read, written, and wrong ones named."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from traces import PODS, trace_pod, write

from weft.lab.experiment.run.trace_runs import arrivals_of_seed
from weft.lab.simulate.openb import TracePod, pods_csv, read_pods
from weft.lab.simulate.scenario import Scenario
from weft.model import BadInputError, Gang
from weft.testing import node

import msgspec  # isort: skip

WITH_GANGS = PODS.replace("\n", ",gang,gang_min\n")
GOLDEN = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time,\
gpu_memory_mib,gpu_memory_percent,priority,application,weft_pod,gang,gang_min
a,0,0,1,1000,,,,,,,,,,train,2
b,0,0,1,500,,,,,,,,,,train,2
c,0,0,1,500,,,,,,,,,,train,2
d,0,0,1,1000,,,,,,,7,,,,
e,0,0,1,1000,,,,,,,,,,all,
f,0,0,1,1000,,,,,,,,,,all,
"""


def of_gang(pod: TracePod, name: str, least: int) -> TracePod:
    return msgspec.structs.replace(pod, listed_gang=Gang("trace", "default", name, least))


def test_what_is_written_of_gangs_is_what_is_read(tmp_path: Path) -> None:
    pods = [
        of_gang(trace_pod("a"), "train", 2),
        of_gang(trace_pod("b", 1, 500), "train", 2),
        of_gang(trace_pod("c", 1, 500), "train", 2),
        msgspec.structs.replace(trace_pod("d"), priority=7),
        of_gang(trace_pod("e"), "all", 2),
        of_gang(trace_pod("f"), "all", 2),
    ]
    assert pods_csv(pods) == GOLDEN
    assert read_pods(write(tmp_path / "pods.csv", GOLDEN)) == pods


def test_a_list_without_gangs_is_written_without_their_columns() -> None:
    assert "gang" not in pods_csv([trace_pod("a")])


def test_least_may_stand_on_one_row(tmp_path: Path) -> None:
    text = WITH_GANGS + "a,0,0,1,1000,,,,,g,\nb,0,0,1,1000,,,,,g,1\n"
    leasts = [pod.gang and pod.gang.least for pod in read_pods(write(tmp_path / "p.csv", text))]
    assert leasts == [1, 1]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("a,0,0,1,1000,,,,,,2\n", "line 2, column gang_min: 2 on a pod without gang"),
        ("a,0,0,1,1000,,,,,g,2\n", "line 2, column gang_min: 2 of gang 'g', which has 1 rows"),
        ("a,0,0,1,1000,,,,,g,0\n", "line 2, column gang_min: 0 is not between 1"),
        ("a,0,0,1,1000,,,,,g,x\n", "line 2, column gang_min: 'x' is not a whole number"),
        (
            "a,0,0,1,1000,,,,,g,1\nb,0,0,1,1000,,,,,g,2\n",
            "line 3, column gang_min: 2 for gang 'g', but 1 in another row",
        ),
    ],
)
def test_a_gang_that_cannot_be_is_an_error_of_its_cell(
    tmp_path: Path, rows: str, says: str
) -> None:
    with pytest.raises(BadInputError) as error:
        read_pods(write(tmp_path / "pods.csv", WITH_GANGS + rows))
    assert says in str(error.value)


def test_a_misspelt_gang_column_is_named(tmp_path: Path) -> None:
    text = PODS.replace("\n", ",gang_mim\n") + "a,0,0,1,1000,,,,,\n"
    with pytest.raises(BadInputError, match="did you mean 'gang_min'"):
        read_pods(write(tmp_path / "pods.csv", text))


@settings(max_examples=few_or_many(30, 300), deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(0, 50))
def test_resampling_keeps_gangs_whole(sizes: list[int], seed: int) -> None:
    """`sizes` are of gangs, 0 a pod of its own: each gang's rows get all rows of one gang of as
    many, and no other pod's."""
    pods: list[TracePod] = []
    for number, size in enumerate(sizes):
        for _ in range(max(1, size)):
            pod = trace_pod(f"p{len(pods)}", times=(0, 1, 0))
            pods.append(of_gang(pod, f"g{number}", size) if size else pod)
    found = arrivals_of_seed(Scenario([node("a")], pods), "timed", seed, seeds=5, demand=1.3)
    rows_of: dict[str, list[int]] = {}
    for row, pod in enumerate(pods):
        rows_of.setdefault(pod.gang.key if pod.gang else f"{row}", []).append(row)
    drawn = [tuple(found.pod_rows[row] for row in rows) for rows in rows_of.values()]
    assert set(drawn) <= {tuple(rows) for rows in rows_of.values()}


def test_what_is_written_of_queues_is_what_is_read(tmp_path: Path) -> None:
    """Pods that name no queue are in that of their namespace, which the file then says."""
    pods = [msgspec.structs.replace(trace_pod("a"), listed_queue="research"), trace_pod("b")]
    text = pods_csv(pods)
    assert [line.rpartition(",")[2] for line in text.splitlines()] == [
        "queue",
        "research",
        "default",
    ]
    read = read_pods(write(tmp_path / "pods.csv", text))
    assert [pod.queue for pod in read] == [pod.queue for pod in pods]
    assert "queue" not in pods_csv(pods[1:])
