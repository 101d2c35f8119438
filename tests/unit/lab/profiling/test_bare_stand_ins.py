"""Stand-ins for msgspec and pynvml, on a machine without them, do the same as they do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from measuring_world import WORLD, measured, played

from fakes.bench import FakeWorkload
from weft.interference.dataset import decode, encode
from weft.lab.profiling.session import compile_dataset

HERE = Path(__file__).resolve().parent
BENCHMARKS = HERE.parents[3] / "benchmarks"
BARE = f"""
import sys
sys.path[:0] = [{str(BENCHMARKS)!r}, {str(HERE)!r}, {str(HERE.parents[2])!r}]
import bare_msgspec
bare_msgspec.stand_in()
"""
MEASURE = """
from pathlib import Path
from test_bare_stand_ins import dataset
Path(sys.argv[2]).write_bytes(dataset(Path(sys.argv[1])))
"""
NVML = """
import bare_pynvml
bare_pynvml.stand_in()
from weft.node.devices.nvml_gpu import NvmlGpu
for name in ("0", "GPU-1"):
    gpu = NvmlGpu(name)
    card = gpu.card
    print(card.gpu_model, card.uuid, card.memory_mib, card.driver, card.counters)
    gpu.sample()
    print(sorted(gpu.sample().items()))
    print(gpu.memory_mib(), [gpu.process_mib(pid) for pid in (7, 8, 9)])
    gpu.close()
try:
    NvmlGpu("3")
except Exception as error:
    print(error)
"""
READER = """
import time
from weft.node.devices.nvml import NvmlReader
clock = [0.0]
reader = NvmlReader(now_s=lambda: clock[0])
(device,) = reader.devices()
gpu = device.gpu
print(gpu.index, gpu.model, gpu.uuid, gpu.memory_mib, device.reserved_mib, device.minor)
print(device.pci_bus_id, device.paths, reader.driver_version())
print([(use.index, use.values["memory_used_mib"], use.values["power_w"]) for use in reader.use()])
print([(p.pid, p.memory_mib, p.sm_ratio) for p in reader.processes()])
print([(p.pid, p.sm_ratio) for p in reader.processes()])
until = time.monotonic() + 20
while not device.fault and time.monotonic() < until:
    time.sleep(0.01)
    (device,) = reader.devices()
print(device.fault)
clock[0] += 60
print([device.fault for device in reader.devices()])  # the driver says that nothing need be done
reader.close()
"""


def dataset(path: Path) -> bytes:
    """The dataset that measuring on a fake GPU writes in the end."""
    return encode(
        compile_dataset(measured(path, {**WORLD, "broken": FakeWorkload(fails="run")})[0])
    )


def bare(story: str, *args: object, **env: str) -> str:
    """The output of this Python where msgspec is the stand-in."""
    return subprocess.run(
        [sys.executable, "-c", BARE + story, *map(str, args)],
        env={**os.environ, **env},
        text=True,
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    ).stdout


def test_logs_and_datasets_are_the_same_bytes_without_msgspec(tmp_path: Path) -> None:
    expected = dataset(tmp_path / "runs.jsonl")
    log = tmp_path / "bare.jsonl"
    bare(MEASURE, log, tmp_path / "bare.json")
    assert (tmp_path / "bare.json").read_bytes() == expected
    # Each reads what the other wrote, and has nothing left to run.
    before = log.read_bytes()
    assert dataset(log) == expected
    assert log.read_bytes().count(b"\n") <= before.count(b"\n") + 2
    bare(MEASURE, tmp_path / "runs.jsonl", tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == expected


def test_measuring_needs_nothing_of_what_weft_needs(tmp_path: Path) -> None:
    """As on a GPU machine without a network: NumPy is there, and a Python with PyTorch."""
    out, absent = tmp_path / "out", ("msgspec", "typer", "rich", "pynvml", "starlette", "yaml")
    story = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({absent}))
sys.argv = ["gpu_measure", {str(out)!r}, "--device", "cpu", "--python", {str(played(tmp_path))!r},
            "--workload", "softmax", "--runs", "1", "--window-s", "0.2", "--warm-s", "0"]
runpy.run_path({str(BENCHMARKS / "gpu_measure.py")!r}, run_name="__main__")
"""
    env = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    subprocess.run([sys.executable, "-c", story], env=env, check=True, timeout=60)
    (solo,) = decode((out / "dataset.json").read_bytes(), "here").solo
    assert solo.application == "softmax"
    assert solo.rate_per_s == pytest.approx(1_000, rel=0.1)


def test_what_is_no_log_is_refused_without_msgspec_too(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text('{"type":"run","applications":"no list"}\n')
    story = """
from pathlib import Path
from weft.model import BadInputError
from weft.lab.profiling.runlog import read
try:
    read(Path(sys.argv[1]))
except BadInputError as error:
    print(error)
"""
    assert "runs.jsonl, line 1: is not a run" in bare(story, tmp_path / "runs.jsonl")


def test_a_missing_driver_is_said_in_words_without_pynvml() -> None:
    story = """
import bare_pynvml
try:
    bare_pynvml.nvmlShutdown()
except bare_pynvml.NVMLError as error:
    print(error)
"""
    assert bare(story) == "there is no libnvidia-ml.so.1\n"


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler for a fake NVML")
def test_a_gpu_is_read_without_pynvml(tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(
        ["cc", "-w", "-shared", "-fPIC", "-o", library, HERE / "fake_nvml.c"], check=True
    )
    told = bare(NVML, LD_LIBRARY_PATH=str(tmp_path)).splitlines()
    assert told[0] == "NVIDIA-H100-80GB-HBM3 GPU-1 81559 580.1 nvml-gpm"
    assert told[3:6] == told[:3]
    for part in (
        "('sm_active_ratio', 0.22)",
        "('dram_active_ratio', 0.3)",
        "('pcie_sent_bytes_per_s', 41943040.0)",
        "('power_w', 350.0)",
        "('memory_clock_mhz', 2619.0)",
    ):
        assert part in told[1]
    assert "occupancy" not in told[1]
    assert "temperature" not in told[1]
    assert told[2] == "(1000, 80559) [3072, None, None]"
    assert told[6] == "GPU 3: NVML says: Invalid Argument"


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler for a fake NVML")
@pytest.mark.parametrize("whose", ["bare", "nvidia-ml-py"])
def test_a_machine_is_read_with_either_library(tmp_path: Path, whose: str) -> None:
    """Structs and calls are the driver's, as its header has them: the fake is compiled."""
    stand_in = "import bare_pynvml; bare_pynvml.stand_in()\n"
    if whose == "nvidia-ml-py":
        pytest.importorskip("pynvml", reason="an extra, which is not installed here")
        stand_in = ""
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(
        ["cc", "-w", "-shared", "-fPIC", "-o", library, HERE / "fake_nvml.c"], check=True
    )
    told = bare(stand_in + READER, LD_LIBRARY_PATH=str(tmp_path)).splitlines()
    assert told == [
        "0 NVIDIA-H100-80GB-HBM3 GPU-1 80959 600 3",
        "00000000:65:00.0 ('/dev/nvidia3',) 580.1",
        "[(0, 1000.0, 350.0)]",
        "[(7, 3072, 0.4), (8, 0, 0.0)]",
        "[(7, 0.0), (8, 0.0)]",
        "XID 79: fallen off the bus",
        "['']",
    ]
