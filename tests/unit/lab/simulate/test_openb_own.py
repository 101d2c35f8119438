"""Our own columns beside openb's: what is written is what is read, and mistakes are named."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from traces import NODES, PODS, write

from weft.lab.simulate.openb import TracePod, asked, nodes_csv, pods_csv, read_nodes, read_pods
from weft.model import (
    BadInputError,
    Constraints,
    DeviceRule,
    Gpu,
    GpuMemoryRequest,
    GpuRequest,
    Node,
    Shape,
    Toleration,
)
from weft.model.request import Taint

TEXT = st.text("abXY-/,\"' é|", max_size=6)
NAME = st.text("abc-", min_size=1, max_size=5)
GPUS = st.lists(
    st.builds(
        Gpu,
        st.just(0),
        st.sampled_from([16_160, 40_960]),
        TEXT,
        TEXT,
        st.sampled_from([1000, 500]),
    ),
    max_size=3,
).map(lambda gpus: tuple(Gpu(i, *_rest(gpu)) for i, gpu in enumerate(gpus)))
MEMORY = st.builds(
    GpuMemoryRequest,
    st.sampled_from(["none", "mib", "units", "node-units", "percent", "whole"]),
    st.integers(0, 100),
    st.sampled_from([1, 1024]),
    st.booleans(),
)
REQUEST = st.builds(
    GpuRequest,
    st.integers(1, 4),
    MEMORY,
    st.integers(0, 1000),
    st.booleans(),
    st.booleans(),
    st.integers(0, 5),
)
SHAPE = st.builds(
    Shape,
    st.lists(REQUEST, max_size=3).map(tuple),
    st.integers(0, 64_000),
    st.integers(0, 10**6),
    st.lists(st.tuples(NAME, st.integers(0, 9)), max_size=2).map(tuple),
    st.builds(DeviceRule, st.lists(NAME, max_size=2).map(lambda m: tuple(sorted(set(m))))),
    st.booleans(),
    isolation=st.sampled_from(["", "", "mps"]),
    application=NAME | st.just(""),
    constraints=st.builds(
        Constraints, tolerations=st.just(()) | st.just((Toleration("gpu", "Exists"),))
    ),
)


def _rest(gpu: Gpu) -> tuple[int, str, str, int]:
    return gpu.memory_mib, gpu.model, gpu.uuid, gpu.milli


@settings(max_examples=few_or_many(15, 300), deadline=None)
@given(
    st.lists(
        st.builds(
            Node,
            NAME,
            GPUS,
            st.integers(0, 10**6),
            st.integers(0, 10**6),
            st.dictionaries(NAME, st.integers(0, 9), max_size=2),
            st.dictionaries(NAME, TEXT, max_size=2),
            delivers=st.none() | st.just(("nvidia.com/gpu",)),
            isolation=st.none() | st.just(("none", "time-slicing")),
            fail_closed=st.booleans(),
            taints=st.just(()) | st.just((Taint("a", "NoSchedule", "b"),)),
        ),
        unique_by=lambda node: node.name,
        max_size=3,
    )
)
def test_nodes_are_read_as_they_were_written(nodes: list[Node]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert read_nodes(write(Path(folder, "nodes.csv"), nodes_csv(nodes))) == nodes


@settings(max_examples=few_or_many(15, 300), deadline=None)
@given(st.lists(st.tuples(NAME, SHAPE, st.integers(-9, 9)), max_size=4))
def test_pods_are_read_as_they_were_written(rows: list[tuple[str, Shape, int]]) -> None:
    pods = [
        TracePod(name, shape, *asked(shape, 16_160), 5, 90, None, priority)
        for name, shape, priority in rows
    ]
    with tempfile.TemporaryDirectory() as folder:
        found = read_pods(write(Path(folder, "pods.csv"), pods_csv(pods)), 16_160)
    assert [_plain(pod) for pod in found] == [_plain(pod) for pod in pods]


def _plain(pod: TracePod) -> tuple[object, ...]:
    """All but the raw models, which only count in a trace's own histogram."""
    shape = pod.shape
    fields = [getattr(shape, f) for f in shape.__struct_fields__ if f != "trace_spec"]
    return (*fields, pod.name, pod.gpus, pod.milli, pod.created_s, pod.deleted_s, pod.priority)


def test_a_share_of_memory_is_asked_for_in_readable_columns(tmp_path: Path) -> None:
    share = Shape((GpuRequest(1, GpuMemoryRequest("mib", 4040), 250),), 1000, 2048)
    half = Shape((GpuRequest(2, GpuMemoryRequest("percent", 50)),), 1000, 2048)
    text = pods_csv([TracePod("a", share, 1, 250), TracePod("b", half, 2, 500)])
    header, *rows = [line.split(",") for line in text.splitlines()]
    cells = [dict(zip(header, row, strict=True)) for row in rows]
    assert [(c["gpu_milli"], c["gpu_memory_mib"], c["gpu_memory_percent"]) for c in cells] == [
        ("250", "4040", ""),
        ("0", "", "50"),
    ]
    assert [cell["weft_pod"] for cell in cells] == ["", ""]
    first, second = read_pods(write(tmp_path / "f", text), 16_160)
    assert (first.total_milli, second.total_milli) == (250, 1000)


def test_a_pods_part_of_a_card_is_its_cores_or_its_memory() -> None:
    def part(*requests: GpuRequest) -> tuple[int, int]:
        return asked(Shape(requests), 16_000)

    quarter = GpuMemoryRequest("mib", 4000)
    assert part() == (0, 0)
    assert part(GpuRequest(1, quarter, 100)) == (1, 250)
    assert part(GpuRequest(1, quarter, 700)) == (1, 700)
    assert part(GpuRequest(2, whole=True)) == (2, 1000)
    assert part(GpuRequest(2, quarter), GpuRequest(1, quarter, 500)) == (3, 334)
    assert part(GpuRequest(2, GpuMemoryRequest("mib", 24_000), split=True)) == (2, 750)
    assert part(GpuRequest(1, GpuMemoryRequest("mib", 99_000))) == (1, 1000)


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("{", "column weft_pod: is not the JSON that weft trace writes: "),
        ("[]", "column weft_pod: is not the JSON that weft trace writes: "),
        ('{"cpu": 3}', "column weft_pod: has a field 'cpu', which is not one of claims, cpu_milli"),
        ('{"cpu_milli": "x"}', "column weft_pod: is not the JSON that weft trace writes: "),
    ],
)
def test_a_wrong_cell_is_named(cell: str, said: str, tmp_path: Path) -> None:
    quoted = '"' + cell.replace('"', '""') + '"'
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,weft_pod\n" + f"p,1,1,0,0,{quoted}\n"
    with pytest.raises(BadInputError) as caught:
        read_pods(write(tmp_path / "f", text))
    assert f"f, line 2, {said}" in str(caught.value)


def test_memory_and_percent_exclude_each_other(tmp_path: Path) -> None:
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_memory_mib,gpu_memory_percent\n"
    said = "gpu_memory_percent: 50 in addition to gpu_memory_mib 9"
    with pytest.raises(BadInputError, match=said):
        read_pods(write(tmp_path / "f", text + "p,1,1,1,0,9,50\n"))


def test_openbs_own_rules_hold_for_openbs_own_pods(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="0 on a pod with GPUs; write 1 to 1000"):
        read_pods(write(tmp_path / "f", PODS + "p,1,1,1,0,,,,\n"))
    (node,) = read_nodes(write(tmp_path / "n", NODES + "a,1,1,1,T4\n"))
    assert node.gpus[0].memory_mib == 15_360
