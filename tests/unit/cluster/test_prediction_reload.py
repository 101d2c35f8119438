"""Files of interference are looked at again: what changed is told, what is bad changes nothing."""

import asyncio
import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from live_world import until
from slowdown_observer_world import TABLE, Ahead, Scene, api, scene
from volume_world import Volume

from weft.cluster.config.form import Configuration, InterferenceSettings
from weft.cluster.telemetry.prediction_reload import (
    LoadedPredictions,
    PredictionFiles,
    PredictionReloader,
    ReloadMetrics,
)
from weft.cluster.telemetry.solo_rates import SoloProfiles
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.core.policies.coscheml import CoschemlPolicy
from weft.host.prediction_files import files_of
from weft.model.interference_table import (
    INTERFERENCE,
    MYSTIC,
    OBSERVED,
    PREDICTED,
    InterferenceTable,
    InterferenceView,
)

DOCS = Path(__file__).resolve().parents[3] / "docs" / "reference"
WELL = {one: dict.fromkeys(("serve", "train"), 1.02) for one in ("serve", "train")}
BADLY = {"serve": {"serve": 1.02, "train": -1}, "train": {"serve": -1, "train": 1.3}}


def dataset(rate_per_s: float) -> dict[str, Any]:
    solo = {"application": "serve", "gpu_model": "T4", "isolation": "time-slicing"}
    return {
        "apiVersion": "weft.dev/v1",
        "kind": "InterferenceDataset",
        "solo": [{**solo, "rate_per_s": rate_per_s}],
    }


def files_in(volume: Volume, *names: str) -> PredictionFiles:
    settings = InterferenceSettings(**{name: volume.path(name) for name in names})
    return files_of(Configuration(interference=settings), "weft.yaml")


def reloading(made: Scene, files: PredictionFiles) -> PredictionReloader:
    """As a process has it whose policies were told what the files say."""
    loaded = files.read()
    solos = SoloProfiles(loaded.solos)
    return PredictionReloader(made.live, files, loaded, 60, solos, made.slowdown_store)


def upper(told: Any, target: str, other: str) -> float:
    view = InterferenceView(msgspec.convert(told.value, InterferenceTable))
    return float(view.of("T4").upper[view.index_of(target), view.index_of(other)])


async def test_new_predictions_decide_and_equal_ones_are_not_told(tmp_path: Path) -> None:
    volume = Volume(tmp_path / "v", table=WELL)

    async with api() as server, scene(server, pods=False) as made:
        await made.runs("serve", "serve", "latency-critical")
        reloader = reloading(made, files_in(volume, "table"))
        made.events.clear()
        volume.put(table=json.dumps(WELL, indent=1))
        await reloader.reload()
        assert (made.tables(), reloader.counts) == ([], {"applied": 1, "failed": 0})
        volume.put(table=BADLY)
        await reloader.reload()
        (told,) = made.tables()
        assert told.policy == INTERFERENCE
        source = InterferenceView(msgspec.convert(told.value, InterferenceTable)).source
        assert (source.version, OBSERVED in source.sources) == (2, False)
        made.add("anew", "train", "best-effort")
        await until(lambda: made.live.pod("d", "anew") is not None)
        await until(made.live.engine.queue.waiting)
        assert not made.is_bound("anew"), "beside serve, which it must not be"
        volume.put(table=WELL)
        await reloader.reload()
        await until(lambda: made.is_bound("anew"))


async def test_a_ban_outlives_new_predictions(tmp_path: Path) -> None:
    """And none of the events between leaves it out: a decision may follow each of them."""
    volume = Volume(tmp_path / "v", table=WELL)

    async with api() as server, scene(server) as made:
        reloader = reloading(made, files_in(volume, "table"))
        await made.slow()
        await until(lambda: made.deleting("train"))
        await made.idle()  # the ban itself was told
        made.events.clear()
        volume.put(table={**WELL, "train": {"serve": 1.3, "train": 1.4}})
        await reloader.reload()
        (told,) = made.tables()
        assert np.isinf(upper(told, "serve", "train"))
        assert upper(told, "train", "train") == pytest.approx(np.log(1.4))


async def test_exact_coscheml_gets_new_predictions_though_something_was_observed(
    tmp_path: Path,
) -> None:
    volume = Volume(tmp_path / "v", table=WELL)

    async with api() as server, scene(server) as made:
        exact = built_in().create("coscheml", compat="exact")
        made.live.engine.profiles["exact"] = Profile("exact", [exact])
        reloader = reloading(made, files_in(volume, "table"))
        await made.slow()
        await until(lambda: made.deleting("train"))
        await made.idle()  # the eviction's answer is a ban, which is told too
        volume.put(table=BADLY)
        made.events.clear()
        await reloader.reload()
        assert isinstance(exact, CoschemlPolicy)
        assert exact.view.source.classes == ("serve", "train")
        assert OBSERVED not in exact.view.source.sources
        assert exact.view.version == 2
        assert [one.policy for one in made.tables()] == [PREDICTED, INTERFERENCE]
        assert OBSERVED in made.tables()[1].value["sources"]


async def test_who_leads_later_goes_on_from_the_newest(tmp_path: Path) -> None:
    volume = Volume(tmp_path / "v", table=WELL)

    clock = Ahead()
    async with api() as server:
        async with scene(server, clock=clock) as first:
            await first.slow()
            await until(lambda: first.deleting("train"))
        async with scene(server, lead=False, clock=clock) as standby:
            reloader = reloading(standby, files_in(volume, "table"))
            volume.put(table={**WELL, "train": {"serve": 1.3, "train": 1.4}})
            await reloader.reload()
            (told,) = standby.tables()
            assert OBSERVED not in told.value["sources"]
            assert np.isfinite(upper(told, "serve", "train"))
            await standby.live.lead(afresh=False, term=4)
            _, told = standby.tables()
            assert np.isinf(upper(told, "serve", "train"))
            assert upper(told, "train", "train") == pytest.approx(np.log(1.4))
            assert told.value["version"] > 2


async def test_new_profiles_say_how_fast_pods_that_run_should_go(tmp_path: Path) -> None:
    volume = Volume(tmp_path / "v", profiles=dataset(200))

    async with api() as server, scene(server, pods=False) as made:
        reloader = reloading(made, files_in(volume, "profiles"))
        made.slowdown_observer._alone._solos = reloader.solos  # as a process is composed
        await made.runs("serve", "serve", "latency-critical")
        made.clock.passed_s += 120
        found = []
        for rate_per_s in (200, 300):
            volume.put(profiles=dataset(rate_per_s))
            await reloader.reload()
            await made.look(serve=100)
            await made.look(serve=100)
            told = made.slowdown_observer.about(made.uid("serve"))
            assert told is not None
            found.append((told.slowdown, told.alone_per_s))
        assert found == [(2.0, 200.0), (3.0, 300.0)]
        assert made.tables() == [], "policies know nothing of profiles"


async def test_a_bad_file_is_told_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    volume = Volume(tmp_path / "v", table=WELL, profiles=dataset(200))
    bad = {"serve": {"train": 0}}

    with caplog.at_level(logging.INFO, "weft.cluster"):
        async with api() as server, scene(server) as made:
            reloader = reloading(made, files_in(volume, "table", "profiles"))
            before = reloader.loaded
            made.events.clear()
            for times in (1, 2):
                volume.put(table=bad, profiles=dataset(300))
                await reloader.reload()
                await reloader.reload()
                assert reloader.counts == {"applied": 0, "failed": 2 * times}
            assert (made.tables(), reloader.loaded) == ([], before)
            (said,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
            place = f"weft.yaml: interference.table: {volume.path('table')}, serve beside train"
            assert f"{place}: 0.0 is not a slowdown; write how many times longer" in said
            assert "correct the file" in said
            volume.put(table=None, profiles=dataset(300))
            await reloader.reload()
            assert "table: cannot be read: No such file or directory" in caplog.text
            volume.put(table=BADLY, profiles=dataset(300))
            await reloader.reload()
            assert len(made.tables()) == 1
            assert "the files can be read again" in caplog.text
            volume.put(table=bad, profiles=dataset(300))
            await reloader.reload()  # told again: it was good meanwhile
            assert reloader.counts == {"applied": 1, "failed": 6}
            assert sum("not a slowdown" in one.getMessage() for one in caplog.records) == 2
            (family,) = ReloadMetrics(reloader).collect()
            assert f"`{family.name}_total`" in (DOCS / "metrics.md").read_text()
            assert {(s.name, s.labels["result"]): s.value for s in family.samples} == {
                ("weft_interference_reloads_total", "applied"): 1,
                ("weft_interference_reloads_total", "failed"): 6,
            }


async def test_a_mistake_of_ours_costs_a_look(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    volume = Volume(tmp_path / "v", a="1")

    def meaning(bodies: Mapping[str, bytes]) -> LoadedPredictions:
        if bodies["weft.yaml: a"] == b"2":
            raise ZeroDivisionError("of all things")
        return LoadedPredictions()

    async with api() as server, scene(server, lead=False) as made:
        reloader = reloading(
            made, PredictionFiles({"weft.yaml: a": Path(volume.path("a"))}, meaning)
        )
        volume.put(a="2")
        await reloader.reload()
        await reloader.reload()
        assert reloader.counts["failed"] == 2
        volume.put(a="3")
        await reloader.reload()
        assert reloader.counts["applied"] == 1
    assert caplog.text.count("interference: weft.yaml: a: ZeroDivisionError('of all things')") == 1


async def test_distances_are_told_where_they_alone_changed(tmp_path: Path) -> None:
    near, far = {"a": {"b": 1.0}}, {"a": {"b": 2.0}}
    volume = Volume(tmp_path / "v", table=WELL, mystic=near)

    async with api() as server, scene(server) as made:
        reloader = reloading(made, files_in(volume, "table", "mystic"))
        made.events.clear()
        volume.put(table=WELL, mystic=far)
        await reloader.reload()
        assert [(one.policy, one.value) for one in made.tables()] == [(MYSTIC, far)]


async def test_predicting_holds_nobody_up(tmp_path: Path) -> None:
    """The new file is understood only once the loop went on meanwhile."""
    volume, went_on = Volume(tmp_path / "v", a="1"), threading.Event()

    def meaning(bodies: Mapping[str, bytes]) -> LoadedPredictions:
        if bodies["a"] == b"2":
            assert went_on.wait(60)
        return LoadedPredictions(TABLE)

    async with api() as server, scene(server, lead=False) as made:
        reloader = reloading(made, PredictionFiles({"a": Path(volume.path("a"))}, meaning))
        volume.put(a="2")
        looking = asyncio.create_task(reloader.reload())
        await asyncio.sleep(0)
        went_on.set()
        await looking
        assert reloader.counts == {"applied": 1, "failed": 0}


async def test_it_looks_each_time_the_period_is_over(tmp_path: Path) -> None:
    volume = Volume(tmp_path / "v", table=WELL)

    class Counted(Ahead):
        """Nobody who sleeps for the period wakes before the test lets it pass."""

        def __init__(self) -> None:
            super().__init__()
            self.asleep, self.over = 0, asyncio.Event()

        async def sleep(self, seconds: float) -> None:
            if seconds == 45:
                self.asleep += 1
                await self.over.wait()
                self.over.clear()
            else:
                await super().sleep(seconds)

    clock = Counted()
    async with api() as server, scene(server, lead=False, clock=clock) as made:
        files = files_in(volume, "table")
        reloader = PredictionReloader(made.live, files, files.read(), 45, SoloProfiles(), None)
        task = asyncio.create_task(reloader.run())
        for times in (1, 2):
            await until(lambda times=times: clock.asleep == times)  # type: ignore[misc]
            volume.put(table=[WELL, BADLY][times % 2])
            assert reloader.counts["applied"] == times - 1
            clock.over.set()
            await until(lambda times=times: reloader.counts["applied"] == times)  # type: ignore[misc]
        task.cancel()
        assert len(made.tables()) == 2


def test_what_is_known_in_words() -> None:
    assert str(LoadedPredictions(TABLE)) == "interference of 2 applications is known"
    assert (
        str(LoadedPredictions(None, {"a": {}})) == "mystic's distances of 1 applications are known"
    )
    assert str(LoadedPredictions()) == "solo profiles of 0 applications are known"


def test_solos_are_replaced_whole() -> None:
    found = SoloProfiles()
    assert not found
    before = found.version
    found.replace(files_solos())
    assert found
    assert found.version > before
    found.replace(())
    assert not found


def files_solos() -> Any:
    from weft.interference.records import SoloRun

    return [SoloRun("serve", "T4", rate_per_s=1.0)]
