"""Files are looked at again: only other content is news, and only where all of them are good."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from slowdown_observer_world import TABLE
from volume_world import Volume

from weft.cluster.config.form import Configuration, InterferenceSettings
from weft.cluster.telemetry.prediction_reload import LoadedPredictions, PredictionFiles
from weft.host.prediction_files import files_of
from weft.model import BadInputError


class Counting:
    """Files that count: their text, and how often somebody asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, bodies: Mapping[str, bytes]) -> LoadedPredictions:
        self.asked += 1
        if b"bad" in bodies.values():
            raise BadInputError("a", "is bad")
        return LoadedPredictions(
            distances={place: {body.decode(): 1.0} for place, body in bodies.items()}
        )


def test_only_other_content_is_news_however_it_comes(tmp_path: Path) -> None:
    volume, meaning = Volume(tmp_path / "v", a="old"), Counting()
    files = PredictionFiles({"a": Path(volume.path("a"))}, meaning)
    assert files.read().distances == {"a": {"old": 1.0}}
    assert files.read_changed() == "as before"
    volume.put(a="old")  # the same again, as after a CronJob that found nothing new
    assert files.read_changed() == "as before"
    assert meaning.asked == 1
    volume.put(a="new")
    assert files.read_changed() == LoadedPredictions(distances={"a": {"new": 1.0}})
    assert files.read_changed() == "as before"
    (path := Path(volume.path("a"))).write_text("own")  # in place, as long as before
    os.utime(path, ns=(1, 1))
    assert files.read_changed() == LoadedPredictions(distances={"a": {"own": 1.0}})


def test_all_files_are_good_or_none_is_taken(tmp_path: Path) -> None:
    volume, meaning = Volume(tmp_path / "v", a="1", b="1"), Counting()
    files = PredictionFiles({name: Path(volume.path(name)) for name in "ab"}, meaning)
    files.read()
    for bad in ("bad", None):
        volume.put(a="2", b=bad)
        for _ in range(2):
            with pytest.raises(BadInputError, match=r"is bad|b: cannot be read: No such file"):
                files.read_changed()
    assert meaning.asked == 2, "the same bad file is read once"
    volume.put(a="2", b="2")
    assert files.read_changed() == LoadedPredictions(distances={"a": {"2": 1.0}, "b": {"2": 1.0}})


def test_a_file_that_is_back_is_as_before(tmp_path: Path) -> None:
    volume = Volume(tmp_path / "v", a="1")
    files = PredictionFiles({"a": Path(volume.path("a"))}, Counting())
    files.read()
    volume.put(a=None)
    with pytest.raises(BadInputError):
        files.read_changed()
    volume.put(a="1")
    assert files.read_changed() == "as before"


def test_what_is_being_written_waits_until_it_is_whole(tmp_path: Path) -> None:
    class FakeSlowlyWritten(type(Path())):  # type: ignore[misc]
        """A file of which somebody writes more while it is read."""

        more = ""

        def open(self, *args: Any, **kwargs: Any) -> Any:
            if self.more:
                with Path(self).open("a") as file:
                    file.write(self.more)
            return super().open(*args, **kwargs)

    path = FakeSlowlyWritten(tmp_path / "a")
    path.write_text("1")
    files = PredictionFiles({"a": path}, Counting())
    files.read()
    path.write_text("22")
    path.more = "3"
    assert files.read_changed() == "being written"
    path.more = ""
    assert files.read_changed() == LoadedPredictions(distances={"a": {"223": 1.0}})


def test_predictions_that_make_no_sense_are_no_table(tmp_path: Path) -> None:
    path = tmp_path / "told.json"
    files = files_of(Configuration(interference=InterferenceSettings(table=str(path))))
    nan, worst = np.full((1, 3, 3), np.nan), np.full((1, 3, 3), 9, dtype=np.int8)
    for wrong in ({"mean": nan.tobytes()}, {"upper": nan.tobytes()}, {"tier": worst.tobytes()}):
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(TABLE, **wrong)))
        with pytest.raises(BadInputError, match=r"told\.json: is not a table of interference"):
            files.read()
    path.write_bytes(msgspec.json.encode(TABLE))
    assert files.read().interference == TABLE
