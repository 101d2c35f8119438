"""A log of runs and the dataset it makes, byte for byte; the medians were worked out by hand."""

from pathlib import Path

from weft.interference.dataset import decode, encode, measured
from weft.lab.profiling.runlog import read
from weft.lab.profiling.session import compile_dataset

CARD = (
    '{"type":"begin","card":{"gpu_model":"NVIDIA-H100-80GB-HBM3","uuid":"GPU-1",'
    '"memory_mib":81559,"driver":"580.1","counters":"nvml-gpm","fake":false},'
    '"at":"2026-01-01T00:00:00+00:00","schema":"weft-runs/1","settings":{"sizes":"full"}}'
)


def alone(name: str, number: int, rate: float, sm: float, mib: int = 1_000) -> str:
    return (
        f'{{"type":"run","applications":["{name}"],"isolation":"mps","repetition":{number},'
        f'"rates":[{rate}],"features":{{"sm_active_ratio":{{"mean":{sm},"p95":{sm + 0.1:.2f}}}}},'
        f'"memories_mib":[{mib}],"peaks_mib":[{mib + 10}],"window_s":3.0,"took_s":5.0,'
        '"versions":"2.11.0"}'
    )


def beside(number: int, first: float, second: float) -> str:
    return (
        f'{{"type":"run","applications":["a","b"],"isolation":"mps","repetition":{number},'
        f'"rates":[{first},{second}],"memories_mib":[1,2],"peaks_mib":[1,2],"window_s":3.0}}'
    )


FAILED = (
    '{"type":"run","applications":["a","c"],"isolation":"mps","repetition":0,'
    '"failure":{"application":"c","reason":"out-of-memory","text":"full"}}'
)

DATASET = """\
{
 "apiVersion": "weft.dev/v1",
 "kind": "InterferenceDataset",
 "about": {
  "gpuModel": "NVIDIA-H100-80GB-HBM3",
  "driver": "580.1",
  "counters": "nvml-gpm",
  "torch": "2.11.0",
  "began": "2026-01-01T00:00:00+00:00",
  "sizes": "full"
 },
 "solo": [
  {
   "application": "a",
   "gpu_model": "NVIDIA-H100-80GB-HBM3",
   "isolation": "mps",
   "features": {
    "sm_active_ratio": {
     "mean": 0.5,
     "p95": 0.6
    }
   },
   "memory_mib": 1100,
   "peak_mib": 1310,
   "rate_per_s": 20.0,
   "runs": 3,
   "seconds": 9.0,
   "source": "measured"
  },
  {
   "application": "b",
   "gpu_model": "NVIDIA-H100-80GB-HBM3",
   "isolation": "mps",
   "features": {
    "sm_active_ratio": {
     "mean": 0.25,
     "p95": 0.35
    }
   },
   "memory_mib": 1000,
   "peak_mib": 1010,
   "rate_per_s": 8.0,
   "runs": 1,
   "seconds": 3.0,
   "source": "measured"
  }
 ],
 "corun": [
  {
   "target": "a",
   "aggressors": [
    "b"
   ],
   "gpu_model": "NVIDIA-H100-80GB-HBM3",
   "isolation": "mps",
   "rate_per_s": 15.0,
   "speed": 0.75,
   "runs": 3
  },
  {
   "target": "b",
   "aggressors": [
    "a"
   ],
   "gpu_model": "NVIDIA-H100-80GB-HBM3",
   "isolation": "mps",
   "rate_per_s": 4.0,
   "speed": 0.5,
   "runs": 3
  }
 ],
 "infeasible": [
  {
   "applications": [
    "a",
    "c"
   ],
   "gpu_model": "NVIDIA-H100-80GB-HBM3",
   "isolation": "mps",
   "failed": "c",
   "reason": "out-of-memory",
   "text": "full"
  }
 ]
}
"""


def test_medians_of_the_runs_are_the_dataset(tmp_path: Path) -> None:
    lines = [
        CARD,
        alone("a", 0, 10.0, 0.4),
        alone("a", 1, 20.0, 0.5, 1_300),
        alone("a", 2, 30.0, 0.6, 1_100),
        alone("b", 0, 8.0, 0.25),
        beside(0, 15.0, 3.0),
        beside(1, 5.0, 4.0),
        beside(2, 25.0, 6.0),
        FAILED,
    ]
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(lines) + "\n")
    found = compile_dataset(read(path))
    assert encode(found).decode() == DATASET
    assert decode(DATASET.encode(), "here") == found


def test_what_predictors_get_of_it() -> None:
    told = measured(decode(DATASET.encode(), "here"), "own")
    assert [(one.application, one.rate_per_s, one.features) for one in told.solos] == [
        ("a", 20.0, {"sm_active_ratio.mean": 0.5, "sm_active_ratio.p95": 0.6}),
        ("b", 8.0, {"sm_active_ratio.mean": 0.25, "sm_active_ratio.p95": 0.35}),
    ]
    assert [(one.target, one.others, one.speed, one.runs) for one in told.runs] == [
        ("a", ("b",), 0.75, 3),
        ("b", ("a",), 0.5, 3),
    ]
    assert told.forbidden == ((("a", "c"), "NVIDIA-H100-80GB-HBM3", "mps"),)
