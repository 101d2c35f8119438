"""`kubectl inspect gpushare`: the text that the original prints, byte for byte."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from inspected_cluster import node, pod, served

from fakes.api_server import FakeApiServer
from weft.cli.gpushare_inspect import aligned, main

GOLDEN = Path(__file__).parents[2] / "golden" / "gpushare_inspect"
"""Printed by the original's code (gpushare-device-plugin, cmd/inspect) with Go's tabwriter."""
ONE, TWO = "cn-shanghai.i-uf61h64dz1tmlob9hmtb", "cn-shanghai.i-uf61h64dz1tmlob9hmtc"
IDX, MEM = "ALIYUN_COM_GPU_MEM_IDX", "aliyun.com/gpu-mem"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    with served(tmp_path) as (server, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        server.add("nodes", node(TWO, "192.168.0.70", gpu_mem=30, gpu_count=2))
        server.add("nodes", node(ONE, "192.168.0.71", gpu_mem=15, gpu_count=1))
        server.add("nodes", node("cpu-only", "192.168.0.72"))
        server.add("pods", pod("binpack-1", ONE, {MEM: 6}, annotations={IDX: "0"}))
        server.add("pods", pod("binpack-2", TWO, {MEM: "3"}, annotations={IDX: "1"}), "ml")
        split = {"scheduler.framework.gpushare.allocation": '{"0":{"0":2},"1":{"1":2}}'}
        server.add("pods", pod("both", TWO, {MEM: 4}, annotations=split), "ml")
        server.add("pods", pod("starting", TWO, {MEM: 5}))
        server.add("pods", pod("over", TWO, {MEM: 9}, annotations={IDX: "0"}) | _ended())
        server.add("pods", pod("no-gpu", TWO, {"cpu": 1}))
        yield server


def _ended() -> dict[str, object]:
    return {"status": {"phase": "Succeeded"}}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["kubectl-inspect-gpushare", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize(("arguments", "file"), [((), "summary"), (("-d",), "details")])
def test_prints_what_the_original_prints(
    cluster: FakeApiServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    file: str,
) -> None:
    assert run(monkeypatch, *arguments) == 0
    assert capsys.readouterr().out == (GOLDEN / f"{file}.txt").read_text()


def test_a_node_alone(
    cluster: FakeApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, ONE) == 0
    assert capsys.readouterr().out == (
        "NAME                                IPADDRESS     GPU0(Allocated/Total)  GPU Memory(GiB)\n"
        "cn-shanghai.i-uf61h64dz1tmlob9hmtb  192.168.0.71  6/15                   6/15\n"
        "------------------------------------------------------------------------------\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "6/15 (40%)  \n"
    )


def test_a_node_that_is_not_there_and_a_wrong_option(
    cluster: FakeApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "elsewhere") == 1
    assert capsys.readouterr().out.startswith("Failed due to ")
    assert run(monkeypatch, "--wide") == 2
    assert "usage: kubectl inspect gpushare [-d] [NODE]" in capsys.readouterr().err


def test_a_cluster_without_shared_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(tmp_path) as (_, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        run(monkeypatch)
        run(monkeypatch, "-d")
    assert capsys.readouterr().out == (
        "NAME  IPADDRESS  GPU Memory()\n\nAllocated/Total GPU Memory In Cluster:\n0/0 (0%)  \n"
        "\n\nAllocated/Total GPU Memory In Cluster:  0/0 (0%)  \n"
    )


def test_a_line_without_the_column_ends_its_width() -> None:
    text = "wide cell\tb\t\nx\ty\t\nno tab\nz\tlast"
    assert aligned(text) == "wide cell  b  \nx          y  \nno tab\nz  last"
