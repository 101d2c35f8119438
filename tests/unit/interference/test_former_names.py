"""Files of Weft 0.1, whose fields had other names, are read like those of today."""

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from interference_world import QUICK, world

from weft.cluster.config import read as config_file
from weft.cluster.config.form import Configuration
from weft.cluster.snapshot import file as snapshot_file
from weft.cluster.snapshot.capture import CapturedObjects, snapshot_of
from weft.cluster.stores import peak_usage
from weft.core.engine import PeakLearnt
from weft.interference import dataset, model_file, observed_slowdown
from weft.interference.ladder import fit
from weft.interference.observed_slowdown import Ban, ObservationRecord, ObservedPair
from weft.kube.clock import SystemClock
from weft.model import BadInputError


def renamed(text: str | bytes, **former: str) -> str:
    """The text with fields under their former names; each of them is in it."""
    found = text if isinstance(text, str) else text.decode()
    for today, then in former.items():
        assert f'"{today}":' in found
        found = found.replace(f'"{today}":', f'"{then}":')
    return found


def test_a_dataset() -> None:
    sample = dataset.CoLocationSample("a", ("b",), "T4", dataset.MPS, None, 0.9)
    known = dataset.EMPTY.merged(msgspec.structs.replace(dataset.EMPTY, corun=(sample,)))
    text = renamed(dataset.encode(known), target="victim")
    assert dataset.decode(text.encode(), "d").corun == (sample,)


def test_a_predictor() -> None:
    cell = fit(world(profiles=True), QUICK)
    body = model_file.encode(model_file.PredictorFile(model_file.SCHEMA, "0", ("x",), (cell,)))
    old = renamed(body, target="victim")
    assert model_file.encode(model_file.decode(old.encode(), "m")) == body


def test_what_was_observed() -> None:
    pair, ban = ObservedPair("T4", "a", ("b",), 0.1, (0.1,), 5), Ban("T4", "a", "b", 9)
    record = ObservationRecord((pair,), (ban,))
    text = renamed(observed_slowdown.encode(record), target="victim", application="one")
    assert observed_slowdown.decode(text) == record


def test_peaks() -> None:
    text = '{"peaks": [{"namespace": "d", "who": "Job.a", "asks": "k", "most_mib": 7, "runs": 1}]}'
    assert peak_usage.decode(text) == (PeakLearnt("d", "Job.a", "k", 7, 1),)


def test_a_configuration() -> None:
    head = "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"
    old, new = "lessons: {name: mine}\n", "oomHistory: {name: mine}\n"
    today = config_file.decode((head + new).encode(), "c")
    assert today.oom_history.name == "mine"
    assert config_file.decode((head + old).encode(), "c") == today
    with pytest.raises(BadInputError, match="c: lessons: is the former name of oomHistory"):
        config_file.decode((head + old + new).encode(), "c")


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_snapshot(tmp_path: Path, suffix: str) -> None:
    objects: CapturedObjects = CapturedObjects({}, {"team.Job.train": "{}"})
    made = snapshot_of(objects, Configuration(), SystemClock().wall())
    body = renamed(snapshot_file.encode(made), oomHistory="lessons").encode()
    assert json.loads(body)["lessons"] == {"team.Job.train": "{}"}
    path = tmp_path / f"snapshot{suffix}"
    path.write_bytes(gzip.compress(body) if path.suffix == ".gz" else body)
    assert snapshot_file.read(path) == made
