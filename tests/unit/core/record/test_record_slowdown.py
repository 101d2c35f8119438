"""Evictions of pods that made others slow are in the file, decided again alike, and explained."""

import io
from pathlib import Path

import numpy as np
import pytest
from chained_lines import chained

from weft.core.engine import (
    NodesChanged,
    PodAdded,
    PodBound,
    PodProgress,
    PolicyInput,
    ProgressSeen,
)
from weft.core.explain.renderer import lines_of
from weft.core.policies.catalog import built_in
from weft.core.record import (
    DecisionsWriter,
    Header,
    PolicyUse,
    ProfileUse,
    Recorder,
    explain,
    read,
    replay,
)
from weft.model.interference_table import INTERFERENCE, PredictionTier, interference, to_input
from weft.testing import node, pod

S = 1_000_000_000


def recorded(path: Path, policy: str, job_class: str, slowdown: float, looks: int = 26) -> None:
    """Two pods on one GPU, of which the first is of this class, and both are so slow."""
    mean = np.full((1, 3, 3), 0.01)
    tier = np.full(mean.shape, PredictionTier.LEARNED, dtype=np.int8)
    told = interference(1, ["T4"], ("web", "train"), (mean, mean + 0.01, tier))
    header = Header([ProfileUse("weft", [PolicyUse(policy)])])
    out = io.BytesIO()
    handle = Recorder(header.engine(built_in().create), header, DecisionsWriter(out).write).handle
    handle(NodesChanged((node("a", gpus=1, model="T4"),)), 0)
    handle(PolicyInput(INTERFERENCE, to_input(told)), 0)
    for number, (name, kind) in enumerate((("web", job_class), ("train", "best-effort"))):
        asks = pod(name, memory_mib=4_000, application=name, job_class=kind)
        handle(PodAdded(asks), number)
        handle(PodBound(name), number)
    for number in range(1, looks):
        seen = (PodProgress("web", slowdown), PodProgress("train", slowdown))
        handle(ProgressSeen(seen), 15 * number * S)
    path.write_bytes(out.getvalue())


WORDS = {
    "latency-critical": "web on GPU 0 was 3.00 times slower than alone (allowed: 1.10) in 2 "
    "of the last 3 windows; without this pod it is expected to be 1.01 times faster",
    "batch": "the pods of GPU 0 together progress at 0.67 times the rate of one pod alone; of "
    "those that may be evicted, this pod was bound last",
}


@pytest.mark.parametrize("policy", ["interference", "auto"])
@pytest.mark.parametrize("job_class", WORDS)
def test_it_is_decided_again_and_explained(policy: str, job_class: str, tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    recorded(path, policy, job_class, 3.0)
    verdict = replay(*read(path), built_in().create)
    assert (verdict.identical, verdict.decisions) == (True, 3)
    text = "\n".join(lines_of(explain(path, "train", built_in().create)))
    assert "to be evicted from a, GPU 0" in text
    assert f"  {WORDS[job_class]}\n" in text


def test_other_policies_evict_nobody_for_it(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    recorded(path, "binpack", "latency-critical", 3.0)
    assert replay(*read(path), built_in().create).decisions == 2


def test_auto_evicts_nobody_where_nothing_is_predicted(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    recorded(path, "auto", "batch", 3.0)
    lines = [
        line for line in path.read_bytes().splitlines(keepends=True) if b'"PolicyInput"' not in line
    ]
    assert len(lines) < len(path.read_bytes().splitlines())
    path.write_bytes(chained(b"".join(lines)))
    header, read_lines = read(path)
    engine = header.engine(built_in().create)
    found = [one for line in read_lines for one in engine.handle(line.event, line.at_ns)]
    assert not any(getattr(one, "record", None) and one.record.slowed for one in found)


def test_another_slowdown_is_another_decision(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    recorded(path, "interference", "latency-critical", 3.0)
    changed = path.read_bytes().replace(b'"slowdown":3.0,"proxy"', b'"slowdown":1.0,"proxy"')
    path.write_bytes(chained(changed))
    assert not replay(*read(path), built_in().create).identical
