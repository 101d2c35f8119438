"""The agent's checks on a GPU, with a Python that plays PyTorch, an MPS daemon that serves no GPU,
and an nvidia-smi that prints: what is held, what failed, and what could not be run, is told."""

import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fakes.mps import fake_mps_control
from fakes.nvml import FakeNvml, FakeNvmlCard
from weft.node.devices.nvml import NvmlReader
from weft.node.devices.reader import ProcessUse

SCRIPT = Path(__file__).resolve().parents[4] / "benchmarks" / "gpu_node.py"
PLAYED = """#!{python}
# A fake of a Python with PyTorch: it heeds MPS' limits, or not, as the test says.
import json, os, sys
words, heeds = sys.argv[2:], {heeds}
limit = int(os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=99999M")[2:-1])
percent = int(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))
print(os.getpid(), file=open({pids!r}, "a"))
def say(said, **more):
    print(json.dumps(dict(said=said, **more)), flush=True)
if words[0] == "hold":
    if heeds and int(words[1]) > limit:
        say("out-of-memory")
    else:
        say("held"); sys.stdin.read(); say("survived")
elif words[0] == "rate":
    say("rate", per_s=10.0 * (percent if heeds else 100))
else:
    say("failed")
"""


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    absent = ModuleType("pynvml")
    absent.__spec__ = importlib.machinery.ModuleSpec("pynvml", None)
    monkeypatch.setitem(sys.modules, "pynvml", absent)  # else it puts its own stand-in there
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("gpu_node", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_node", module)
    spec.loader.exec_module(module)
    return module


class Scene:
    """A bench of fakes: the card can be changed, and what its programs may do."""

    def __init__(self, node: ModuleType, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.node, self.folder, self.pids = node, folder, folder / "pids"
        self.card = FakeNvmlCard()
        self.card.reserved_mib = 600
        self.reader: Any = NvmlReader(lambda: FakeNvml(self.card), root=folder)
        patch.setattr(self.reader, "processes", self.processes)
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("FAKE_SEEN", str(folder / "seen"))
        fake_mps_control(folder)
        self.smi("0, GPU-1, NVIDIA H100 80GB HBM3, 81559, 600, 00000000:10:00.0")
        self.told_mib = 1_400
        self.python(heeds=True)

    def python(self, *, heeds: bool) -> None:
        program = self.folder / "played-python"
        text = PLAYED.format(python=sys.executable, heeds=heeds, pids=str(self.pids))
        program.write_text(text)
        program.chmod(0o755)
        self.bench = self.node.Bench(str(program), "GPU-1", self.reader)

    def smi(self, line: str) -> None:
        program = self.folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n# A fake of nvidia-smi.\necho '{line}'\n")
        program.chmod(0o755)

    def processes(self) -> tuple[ProcessUse, ...]:
        pids = self.pids.read_text().split()
        return (ProcessUse(0, int(pids[-1]), self.told_mib), ProcessUse(0, 1, 50))

    def run(self, budget_s: float = 100) -> dict[str, tuple[str, str]]:
        outcomes = self.node.checks(self.bench, time.monotonic() + budget_s)
        return {outcome.check: (outcome.result, outcome.text) for outcome in outcomes}


@pytest.fixture
def scene(node: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(node, tmp_path, monkeypatch)
    yield made
    made.reader.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_good_machine_does_is_held_and_nothing_is_left_behind(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1_000)
    found = scene.run()
    assert found == {
        "discovery": ("held", "1 GPUs as nvidia-smi says"),
        "use by process": ("held", "1,000 MiB held, 1400 told"),
        "MPS memory": ("held", "below: held, above: out-of-memory"),
        "MPS percentage": ("held", "25 % of the threads do 0.25 of all of them"),
        "MPS, two users": ("not run", "only root can run programs of another user"),
        "MPS, a faulting client": ("seen", "the program beside it: survived"),
    }
    assert not any(alive(int(pid)) for pid in scene.pids.read_text().split())
    assert not alive(int((scene.folder / "seen").read_text().split()[0]))


def test_limits_that_nobody_heeds_have_failed(scene: Scene) -> None:
    scene.python(heeds=False)
    bench, env = scene.bench, {}
    with bench.cleared():
        memory = scene.node.share_of_memory(bench, env)
        threads = scene.node.share_of_threads(bench, env)
    assert (memory.result, memory.text) == ("FAILED", "below: held, above: held")
    assert (threads.result, threads.text) == (
        "FAILED",
        "25 % of the threads do 1.00 of all of them",
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0, GPU-2, NVIDIA H100 80GB HBM3, 81559, 600, 00000000:10:00.0", "GPU 0: ('GPU-2'"),
        ("0, GPU-1, NVIDIA H100 80GB HBM3, 81559, 0, 00000000:10:00.0", "81559 MiB, found"),
        ("1, GPU-1, NVIDIA H100 80GB HBM3, 81559, 600, 00000000:10:00.0", "GPU 1 was not found"),
    ],
)
def test_what_nvidia_smi_says_otherwise_has_failed(scene: Scene, line: str, said: str) -> None:
    scene.smi(line)
    outcome = scene.node.discovery(scene.bench)
    assert outcome.result == "FAILED"
    assert said in outcome.text


def test_use_that_is_told_of_nobody_was_not_run_and_of_too_much_has_failed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.told_mib = 9_000
    with scene.bench.cleared():
        assert scene.node.accounting(scene.bench).result == "FAILED"
    monkeypatch.setattr(scene.reader, "processes", lambda: (ProcessUse(0, 1, 50),))
    with (
        scene.bench.cleared(),
        pytest.raises(scene.node.CannotRunError, match=r"other process ids \(\[1\]\)"),
    ):
        scene.node.accounting(scene.bench)


def test_without_mps_or_time_the_rest_is_told_as_not_run(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = scene.run(budget_s=-1)
    assert {result for result, _ in found.values()} == {"not run"}
    assert len(found) == 6
    monkeypatch.setattr(scene.node, "PROGRAM", "nvidia-not-here")
    found = scene.run()
    assert found["discovery"][0] == "held"
    assert found["MPS memory"] == ("not run", "there is no nvidia-not-here")


def test_without_a_driver_nothing_is_run_and_nothing_failed(
    node: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def no_driver() -> None:
        raise node.DeviceError("no NVIDIA GPU found")

    monkeypatch.setattr(node, "NvmlReader", no_driver)
    monkeypatch.setattr(sys, "argv", ["gpu_node", str(tmp_path / "out")])
    assert node.main() == 0
    assert "the agent's checks are not run: no NVIDIA GPU found" in capsys.readouterr().err


def test_the_command_writes_what_came_of_each_check(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene.node, "NvmlReader", lambda: scene.reader)
    python, out = scene.bench.python, scene.folder / "out"
    monkeypatch.setattr(sys, "argv", ["gpu_node", str(out), "--python", python, "--gpu", "0"])
    monkeypatch.setattr(scene.node, "WITH_MPS", {})
    scene.told_mib = 9_000
    assert scene.node.main() == 1
    found = json.loads((out / "node.json").read_text())
    assert [one["result"] for one in found] == ["held", "FAILED"]
