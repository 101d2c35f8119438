import csv
import io
import statistics
from collections import Counter
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from weft.cli import generate as command
from weft.lab.simulate.generate import (
    FULL_SIZE,
    LIFETIMES,
    NODE_HEADER,
    NODE_KINDS,
    POD_HEADER,
    WorkloadMix,
    demo_cluster,
    generate_nodes,
    generate_pods,
)
from weft.lab.simulate.openb import TracePod, read_nodes, read_pods
from weft.model import BadInputError


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def pods(tmp_path: Path, **options: object) -> list[TracePod]:
    path = tmp_path / "pods.csv"
    path.write_text(generate_pods(**options), "utf-8")  # type: ignore[arg-type]
    return read_pods(path)


@pytest.fixture(scope="module")
def default_rows() -> list[dict[str, str]]:
    return rows(generate_pods(count=20_000, seed=7))


def test_the_full_cluster_is_the_published_one(tmp_path):
    path = tmp_path / "nodes.csv"
    path.write_text(generate_nodes(), "utf-8")
    nodes = read_nodes(path)
    assert len(nodes) == 1213
    gpus = Counter(gpu.model for node in nodes for gpu in node.gpus)
    assert gpus == {
        "G2": 4392,
        "T4": 842,
        "G3": 312,
        "P100": 265,
        "V100M32": 204,
        "V100M16": 195,
        "A10": 2,
    }
    assert sum(node.cpu_milli for node in nodes) == 107_018_000
    assert sum(node.memory_mib for node in nodes) == 503_828_480


@pytest.mark.parametrize("gpus", [1, 2, 7, 64, 800, 6211, 20_000])
def test_a_cluster_has_exactly_the_gpus_asked_for(gpus):
    assert sum(int(row["gpu"]) for row in rows(generate_nodes(gpus=gpus))) == gpus


@pytest.mark.parametrize("count", [1, 2, 15, 100, 1213, 5000])
def test_a_cluster_has_exactly_the_nodes_asked_for(count):
    found = rows(generate_nodes(count=count))
    assert len(found) == len({row["sn"] for row in found}) == count


def test_a_small_cluster_keeps_the_proportions():
    gpus: Counter[str] = Counter()
    for row in rows(generate_nodes(gpus=800)):
        gpus[row["model"]] += int(row["gpu"])
    for model in ("G2", "T4", "G3", "P100", "V100M32"):
        full = sum(kind.weight * kind.gpus for kind in NODE_KINDS if kind.model == model)
        assert gpus[model] / 800 == pytest.approx(full / FULL_SIZE, abs=0.012)


def test_the_seed_shuffles_a_clusters_names_only():
    one, two = generate_nodes(gpus=100, seed=1), generate_nodes(gpus=100, seed=2)
    assert one != two

    def machines(text: str) -> list[str]:
        return sorted(line.partition(",")[2] for line in text.splitlines())

    assert machines(one) == machines(two)


def test_headers_are_openbs():
    assert generate_nodes(count=1).splitlines()[0] == NODE_HEADER
    assert generate_pods(count=1).splitlines()[0] == POD_HEADER


def test_a_workload_reads_back_as_it_was_made(tmp_path):
    text = generate_pods(gpus=200, mix=WorkloadMix.SPEC, seed=3)
    (tmp_path / "pods.csv").write_text(text, "utf-8")
    read = read_pods(tmp_path / "pods.csv")
    for row, pod in zip(rows(text), read, strict=True):
        assert pod.name == row["name"]
        assert pod.gpus == int(row["num_gpu"])
        assert pod.milli == (int(row["gpu_milli"]) if pod.gpus else 0)
        assert pod.shape.cpu_milli == int(row["cpu_milli"])
        assert pod.shape.trace_spec == row["gpu_spec"]
        assert pod.created_s is not None
        assert pod.scheduled_s is not None
        assert pod.deleted_s is not None
        assert pod.created_s <= pod.scheduled_s < pod.deleted_s


def test_without_a_count_pods_ask_for_the_whole_cluster_once(tmp_path):
    asked = sum(pod.total_milli for pod in pods(tmp_path, gpus=500))
    assert 500_000 <= asked < 508_000


def test_the_shares_of_pods_are_the_traces(default_rows):
    n = len(default_rows)
    cpu_only = sum(row["num_gpu"] == "0" for row in default_rows) / n
    shared = sum(0 < int(row["gpu_milli"]) < 1000 for row in default_rows) / n
    several = sum(int(row["num_gpu"]) > 1 for row in default_rows) / n
    assert cpu_only == pytest.approx(1088 / 8152, abs=0.01)
    assert shared == pytest.approx(3078 / 8152, abs=0.015)
    assert several == pytest.approx(75 / 8152, abs=0.003)


def test_popular_sizes_are_the_traces(default_rows):
    shares = [int(row["gpu_milli"]) for row in default_rows if 0 < int(row["gpu_milli"]) < 1000]
    popular = [size for size, _ in Counter(shares).most_common(6)]
    assert popular[:3] == [810, 470, 320]
    assert set(popular) == {810, 470, 320, 650, 230, 460}
    assert shares.count(810) / len(shares) == pytest.approx(1078 / 3078, abs=0.02)


def test_cpu_goes_with_the_gpu_share(default_rows):
    small = [int(r["cpu_milli"]) for r in default_rows if 0 < int(r["gpu_milli"]) <= 320]
    whole = [int(r["cpu_milli"]) for r in default_rows if r["gpu_milli"] == "1000"]
    eight = [int(r["cpu_milli"]) for r in default_rows if r["num_gpu"] == "8"]
    assert statistics.mean(small) < statistics.mean(whole) < statistics.mean(eight)


def test_the_demand_for_cpu_is_the_traces():
    asked = sum(int(row["cpu_milli"]) for row in rows(generate_pods()))
    # 79.8 % of all CPU for 98.0 % of all GPUs; these pods ask for 100 %.
    assert asked / 107_018_000 == pytest.approx(0.814, abs=0.03)


def test_quality_of_service_is_mixed_as_in_the_trace(default_rows):
    share = Counter(row["qos"] for row in default_rows)
    assert share["LS"] / len(default_rows) == pytest.approx(4647 / 8152, abs=0.05)
    assert share["BE"] / len(default_rows) == pytest.approx(3398 / 8152, abs=0.05)


def test_lifetimes_have_the_traces_heavy_tail(default_rows):
    lifetimes = [int(r["deletion_time"]) - int(r["scheduled_time"]) for r in default_rows]
    cuts = statistics.quantiles(lifetimes, n=100)
    assert cuts[9] == pytest.approx(73, rel=0.1)
    assert cuts[49] == pytest.approx(616, rel=0.1)
    assert cuts[89] == pytest.approx(7_764, rel=0.15)
    assert cuts[98] == pytest.approx(114_348, rel=0.25)
    assert max(lifetimes) <= 864_000


def test_waits_are_short_as_in_the_trace(default_rows):
    waits = [int(r["scheduled_time"]) - int(r["creation_time"]) for r in default_rows]
    cuts = statistics.quantiles(waits, n=10)
    assert cuts[4] == pytest.approx(2, abs=1)
    assert cuts[8] == pytest.approx(106, rel=0.2)


def test_quantiles_are_met_at_their_points():
    for share, seconds in zip(LIFETIMES.shares, LIFETIMES.seconds, strict=True):
        assert LIFETIMES.at(share) == pytest.approx(seconds)


@pytest.mark.parametrize("load", [0.2, 0.8, 2.0])
def test_the_load_is_request_times_lifetime_over_the_arrivals_span(tmp_path, load):
    found = pods(tmp_path, gpus=64, count=4000, load=load)
    work = sum(p.total_milli * ((p.deleted_s or 0) - (p.scheduled_s or 0)) for p in found)
    span = max(p.created_s or 0 for p in found)
    assert work / (span * 64_000) == pytest.approx(load, rel=0.01)


def test_arrivals_are_in_order_and_spread_out(tmp_path):
    created = [pod.created_s or 0 for pod in pods(tmp_path, gpus=64, count=4000)]
    assert created == sorted(created)
    assert created[2000] / created[-1] == pytest.approx(0.5, abs=0.04)


def test_the_shared_mix_holds_no_whole_gpu(tmp_path):
    assert all(p.milli < 1000 for p in pods(tmp_path, mix=WorkloadMix.SHARED, count=2000))


def test_the_multigpu_mix_asks_half_of_its_gpus_in_several(tmp_path):
    found = pods(tmp_path, mix=WorkloadMix.MULTIGPU, count=10_000)
    several = sum(pod.total_milli for pod in found if pod.gpus > 1)
    assert several / sum(pod.total_milli for pod in found) == pytest.approx(0.5, abs=0.05)


def test_a_third_of_the_gpu_pods_of_the_spec_mix_insist_on_models(tmp_path):
    found = [pod for pod in pods(tmp_path, mix=WorkloadMix.SPEC, count=10_000) if pod.gpus]
    with_spec = sum(bool(pod.shape.trace_spec) for pod in found)
    assert with_spec / len(found) == pytest.approx(2388 / 7064, abs=0.05)


@pytest.mark.parametrize("gpus", [1, 8, 64, FULL_SIZE])
def test_every_pod_fits_an_empty_node_of_its_cluster(tmp_path, gpus):
    (tmp_path / "nodes.csv").write_text(generate_nodes(gpus=gpus), "utf-8")
    nodes = {
        (len(n.gpus), n.cpu_milli, n.memory_mib, n.gpus[0].model)
        for n in read_nodes(tmp_path / "nodes.csv")
    }
    for pod in set(pods(tmp_path, gpus=gpus, mix=WorkloadMix.SPEC, count=1500)):
        models = pod.shape.trace_spec.split("|") if pod.shape.trace_spec else None
        assert any(
            pod.gpus <= g
            and pod.shape.cpu_milli <= c
            and pod.shape.memory_mib <= m
            and (models is None or model in models)
            for g, c, m, model in nodes
        ), pod


def test_a_seed_settles_every_byte():
    assert generate_pods(gpus=100, seed=5) == generate_pods(gpus=100, seed=5)
    assert generate_pods(gpus=100, seed=5) != generate_pods(gpus=100, seed=6)
    assert demo_cluster(1) == demo_cluster(1)


def test_the_demo_is_small_but_not_tiny(tmp_path):
    nodes, workload = demo_cluster()
    assert sum(int(row["gpu"]) for row in rows(nodes)) == 800
    assert 150 <= len(rows(nodes)) <= 200
    assert 900 <= len(rows(workload)) <= 1200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 0}, "--gpus: 0 is not between 1 and 1,000,000"),
        ({"count": -1}, "--count: -1 is not between 1 and 1,000,000"),
        ({"gpus": 8, "count": 1}, "specify only one"),
    ],
)
def test_wrong_sizes_of_clusters_are_named(options, message):
    with pytest.raises(BadInputError, match=message):
        generate_nodes(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 0}, "--gpus: 0 is not"),
        ({"count": 0}, "--count: 0 is not"),
        ({"load": 0.0}, "--load: 0 is not a share of the cluster; write e.g. 0.8"),
        ({"load": float("nan")}, "--load: nan"),
    ],
)
def test_wrong_workloads_are_named(options, message):
    with pytest.raises(BadInputError, match=message):
        generate_pods(**options)


app = typer.Typer()
app.command("nodes")(command.nodes)
app.command("pods")(command.pods)


def test_the_command_prints_to_standard_output_by_default():
    found = CliRunner().invoke(app, ["nodes", "--gpus", "16"])
    assert found.exit_code == 0
    assert found.stdout == generate_nodes(gpus=16)


def test_the_command_writes_a_file(tmp_path):
    path = tmp_path / "pods.csv"
    arguments = ["pods", "--gpus", "16", "--mix", "shared", "--load", "0.5", "--seed", "3"]
    found = CliRunner().invoke(app, [*arguments, "-o", str(path)])
    assert (found.exit_code, found.stdout) == (0, "")
    assert path.read_text("utf-8") == generate_pods(
        gpus=16, mix=WorkloadMix.SHARED, load=0.5, seed=3
    )
    assert [file.name for file in tmp_path.iterdir()] == ["pods.csv"]


@pytest.mark.parametrize("name", ["missing/pods.csv", "."])
def test_a_file_that_cant_be_written_is_named(tmp_path, name):
    found = CliRunner().invoke(app, ["pods", "--gpus", "8", "-o", str(tmp_path / name)])
    assert isinstance(found.exception, BadInputError)
    assert "cannot be written" in str(found.exception)


def test_an_unknown_mix_is_refused_with_the_known_ones():
    found = CliRunner().invoke(app, ["pods", "--mix", "huge"])
    assert found.exit_code == 2
    assert "multigpu" in found.output
