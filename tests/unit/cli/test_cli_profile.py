"""`weft profile` in this process: what is kept, shown and measured, and how wrong words end."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from commands import Weft

from fakes.bench import FakeBench, FakeWorkload
from weft.interference.dataset import (
    CoLocationSample,
    Dataset,
    Feature,
    Infeasible,
    SoloProfile,
    encode,
)
from weft.lab.profiling.campaign import CampaignSettings
from weft.lab.profiling.machine import MachineOptions
from weft.lab.profiling.session import MeasuringPlan, compile_folder, run, workloads_named
from weft.lab.workloads.catalog import WORKLOADS
from weft.model import BadInputError

ALONE = SoloProfile(
    "bert",
    "T4",
    "mps",
    {"sm_active_ratio": Feature(0.5, 0.75)},
    3_000,
    3_500,
    12.5,
    3,
    9.0,
    "measured",
)
BESIDE = CoLocationSample("bert", ("resnet",), "T4", "mps", 6.25, 0.5, 3)
NEVER = Infeasible(("bert", "huge"), "T4", "mps", "huge", "out-of-memory", "CUDA: no room")
KNOWN = Dataset(solo=(ALONE,), corun=(BESIDE,), infeasible=(NEVER,))
QUICK = CampaignSettings(runs=2, window_s=1.0, warm_s=1.0)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "profiles.json"
    path.write_bytes(encode(KNOWN))
    return path


def test_list_has_a_line_a_profile_and_what_cannot_be_run(weft: Weft, kept: Path) -> None:
    said = weft("profile", "list", "--file", kept)
    assert said.code == 0
    header, line, never = said.out.splitlines()
    assert header.split()[:3] == ["application", "GPU", "model"]
    assert line.split() == [
        "bert",
        "T4",
        "mps",
        "measured",
        "3",
        "9",
        "12.5",
        "0.50",
        "–",
        "–",
        "–",
        "–",
        "3,000",
        "3,500",
        "1",
    ]
    assert never == "infeasible: bert + huge (mps): huge: out-of-memory: CUDA: no room"


def test_show_has_features_and_both_sides_of_pairs(weft: Weft, kept: Path) -> None:
    said = weft("profile", "show", "bert", "--file", kept)
    assert said.out.startswith("bert on T4, mps: 3,000 MiB, peak 3,500, 12.5 it/s")
    rows = [line.split() for line in said.out.splitlines()]
    assert ["sm_active_ratio", "0.5", "0.75"] in rows
    assert ["bert", "resnet", "T4", "mps", "0.500", "2.00", "3"] in rows
    other = weft("profile", "show", "resnet", "--file", kept)
    assert other.out.splitlines()[1].split()[:2] == ["bert", "resnet"]
    assert json.loads(
        weft("profile", "show", "huge", "--file", kept, "--output", "json").out
    ).keys() >= {"infeasible"}


def test_import_adds_and_export_gives_it_back(weft: Weft, kept: Path, tmp_path: Path) -> None:
    more, new = tmp_path / "more.json", tmp_path / "new.json"
    more.write_bytes(encode(Dataset(solo=(SoloProfile("gan", "T4", "mps"),))))
    said = weft("profile", "import", kept, more, "--file", new)
    assert (said.code, said.out) == (0, "")
    assert said.err == f"weft: {new}: 2 profiles, 1 co-runs, 1 infeasible\n"
    out = weft("profile", "export", "--file", new).out
    assert [one["application"] for one in json.loads(out)["solo"]] == ["bert", "gan"]
    assert weft("profile", "export", tmp_path / "out.json", "--file", new).code == 0
    assert (tmp_path / "out.json").read_text() == out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("list",),
            "--file, --config-map: specify one of the two, to say where profiles are stored",
        ),
        (("list", "--config-map", "profiles"), "--config-map: 'profiles' is not NAMESPACE/NAME"),
        (
            ("list", "--config-map", "kube-system/.."),
            "--config-map: 'kube-system/..' is not NAMESPACE",
        ),
        (
            ("list", "--config-map", "d/My Profiles"),
            "--config-map: 'd/My Profiles' is not NAMESPACE",
        ),
        (("show", "nobody", "--file", "KEPT"), "nobody: is not known here"),
        (("import", "none.json", "--file", "KEPT"), "none.json: cannot be read"),
        (("export", "BELOW", "--file", "KEPT"), "cannot be written"),
        (
            ("collect", "--url", "http://x", "--progress", "a b"),
            "--progress: 'a b' is not a metric name",
        ),
        (
            ("measure", "OUT", "--workload", "chess"),
            "--workload: 'chess' is unknown; write one of resnet-train",
        ),
        (("collect",), "--url: is missing"),
        (("collect", "--url", "http://127.0.0.1:1"), "profile collect: http://127.0.0.1:1"),
        (("list", "--config-map", "d/p", "--kubeconfig", "none"), "none"),
        (
            ("collect", "--url", "http://127.0.0.1:1", "--config-map", "p"),
            "'p' is not NAMESPACE/NAME",
        ),
        (
            ("collect", "--url", "http://127.0.0.1:1", "--config-map", "d/p", "--file", "KEPT"),
            "--file, --config-map: specify one of the two, to say where profiles are stored",
        ),
        (("list", "--file", "none.json"), "none.json: does not exist"),
        (("export", "--file", "none.json"), "none.json: does not exist"),
        (("show", "bert", "--file", "none.json"), "none.json: does not exist"),
        (("measure", "KEPT", "--device", "cpu"), "runs.jsonl: cannot be written: "),
        (("measure", "BELOW", "--device", "cpu"), "profiles.json is not a folder"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    weft: Weft, kept: Path, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    places = {"KEPT": str(kept), "OUT": str(tmp_path / "out"), "BELOW": str(kept / "x")}
    said = weft("profile", *(places.get(word, word) for word in words))
    missing = len(words) == 1  # an option that the command needs
    assert (said.code, said.out) == (2 if missing else 1, "")
    assert said.err.startswith("weft: error: ")
    assert says in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("collect", "--hours", "inf"),
        ("collect", "--settle-s", "inf"),
        ("collect", "--step-s", "inf"),
        ("measure", "x", "--window-s", "inf"),
        ("measure", "x", "--warm-s", "1e9"),
    ],
)
def test_times_without_end_are_refused_by_name(weft: Weft, words: tuple[str, ...]) -> None:
    said = weft("profile", *words)
    assert said.code == 2
    assert f"Invalid value for '{words[-2]}'" in said.err


def test_names_are_shown_as_they_are_whatever_they_contain(weft: Weft, tmp_path: Path) -> None:
    """Rich would take brackets for its markup, a terminal an escape for an order."""
    path, name = tmp_path / "odd.json", "team [/red] [bold]x[/bold]"
    solos = (
        SoloProfile(name, "T4", "mps", {"[a]": Feature(0, 0)}),
        SoloProfile("\x1b[31mred", "T4", "mps"),
    )
    path.write_bytes(
        encode(Dataset(solo=solos, corun=(CoLocationSample(name, (name,), "T", "mps", 1, 1),)))
    )
    listed = weft("profile", "list", "--file", path)
    assert (listed.code, listed.err) == (0, "")
    assert name in listed.out
    assert r"\x1b[31mred" in listed.out
    assert "\x1b" not in listed.out
    shown = weft("profile", "show", name, "--file", path).out
    assert shown.count(name) == 3
    assert "[a]" in shown


class Proxy(BaseHTTPRequestHandler):
    """Stands where an API server should, and shows everybody the same page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>Please log in</html>")

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_what_is_no_api_server_is_told_in_one_line(weft: Weft, tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    config = tmp_path / "config"
    config.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c"}}],
                "clusters": [
                    {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
                ],
            }
        )
    )
    try:
        for words in (
            ("list", "--config-map", "d/p"),
            ("collect", "--url", "http://x", "--cluster"),
        ):
            said = weft("profile", *words, "--kubeconfig", config)
            assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
            assert "is not an API server's answer" in said.err
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_without_a_gpu_measuring_says_so_in_one_line(weft: Weft, tmp_path: Path) -> None:
    """Here there is neither nvidia-ml-py nor a driver; one of the two is named."""
    said = weft("profile", "measure", tmp_path / "out", "--workload", "softmax")
    assert said.code == 1
    assert "no nvidia-ml-py here" in said.err or "no NVIDIA GPU found" in said.err
    assert not (tmp_path / "out").exists()


def test_a_python_without_pytorch_measures_nothing_and_says_the_way_out(
    weft: Weft, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # -S: no installed packages
    python.chmod(0o755)
    said = weft("profile", "measure", tmp_path / "out", "--device", "cpu", "--python", python)
    assert (said.code, said.out) == (1, "")
    assert said.err == (
        f"weft: error: profile measure: {python}: has no PyTorch; {python} -m pip install torch, "
        "or name a Python that has it with --python\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'OSError: libtorch.so: cannot open' >&2; exit 1", "OSError: libtorch.so: cannot"),
        ("exit 139", "exit code 139"),
    ],
)
def test_a_pytorch_that_does_not_start_is_told_once(
    weft: Weft, tmp_path: Path, script: str, says: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    said = weft("profile", "measure", tmp_path / "out", "--device", "cpu", "--python", python)
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert f"{python}: {says}" in said.err


def test_a_folder_of_another_card_is_not_mixed(tmp_path: Path) -> None:
    workloads = workloads_named(["softmax", "lstm-train"])
    world = {one.name: FakeWorkload() for one in workloads}
    wishes, lines = MeasuringPlan(tmp_path, workloads, ["time-slicing"], QUICK), list[str]()
    run(FakeBench(world), wishes, lines.append)
    assert lines[0].startswith(("time-slicing, softmax: 100 it/s", "time-slicing, lstm-train: 100"))
    found = compile_folder(tmp_path)
    assert [one.application for one in found.solo] == ["lstm-train", "softmax"]
    assert (found.about["sizes"], found.about["counters"]) == ("full", "fake")
    with pytest.raises(BadInputError, match="runs of other sizes"):
        run(FakeBench(world), wishes._replace(how=MachineOptions(tiny=True)), lines.append)
    other = FakeBench(world)
    other.card = type(other.card)("Another-GPU", fake=True)
    with pytest.raises(BadInputError, match="has runs of a Fake-GPU, this is a Another-GPU"):
        run(other, wishes, lines.append)


def test_no_name_means_every_workload() -> None:
    assert workloads_named([]) == list(WORKLOADS)
