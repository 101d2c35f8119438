"""Reloads the files with predictions of interference while the process runs.

  poll ──stamps──equal──▶ nothing
          │ differ       ┌─ a file is missing or invalid ──▶ logged once, counted; the former stays
          └──▶ digests ──┤
                │ equal  └─ all are valid ──▶ policies, observations, solo rates
                └──▶ nothing

Files are read and evaluated in a thread, and applied on the event loop in one piece, so that one
file's change is never visible without another's. Every process polls, leader or not."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace
from prometheus_client.metrics_core import Metric

from weft.cluster.control.interface import ClusterView
from weft.cluster.http.metric_families import counter
from weft.cluster.stores.slowdown_store import SlowdownStore
from weft.cluster.telemetry.solo_rates import SoloProfiles
from weft.core.engine import PolicyInput
from weft.files.reading import raw_bytes
from weft.interference.records import SoloRun
from weft.model import BadInputError
from weft.model.interference_table import (
    INTERFERENCE,
    MYSTIC,
    PREDICTED,
    Distances,
    InterferenceTable,
    to_input,
)

log = logging.getLogger("weft.cluster")

Stamp = tuple[int, ...]
"""Modification and change time, identity and size of a file; () if it does not exist."""


class LoadedPredictions(NamedTuple):
    """Contents of all prediction files together; a field is None (`solos`: empty) if no file has
    it."""

    interference: InterferenceTable | None = None
    distances: Distances | None = None
    solos: tuple[SoloRun, ...] = ()

    def __str__(self) -> str:
        parts = []
        if self.interference is not None:
            parts.append(f"interference of {len(self.interference.classes)} applications is known")
        if self.distances is not None:
            parts.append(f"mystic's distances of {len(self.distances)} applications are known")
        if self.solos or not parts:
            names = {run.application for run in self.solos}
            parts.append(f"solo profiles of {len(names)} applications are known")
        return ", ".join(parts)


class PredictionFiles:
    """Files with predictions, by the name that errors give them. Any thread may read them, but only
    one at a time.

    `meaning` converts the bytes of all files together, or raises `BadInputError`."""

    def __init__(
        self, named: Mapping[str, Path], meaning: Callable[[Mapping[str, bytes]], LoadedPredictions]
    ) -> None:
        self.named, self._meaning = dict(named), meaning
        self._stamps: dict[str, Stamp] = {}
        self._digests: dict[str, bytes] = {}
        self._error: Exception | None = None

    def read(self) -> LoadedPredictions:
        """Read all files; `BadInputError` names the first one that is missing or invalid."""
        self._stamps, bodies = self._stamped(), self._bodies()
        self._digests = _digests(bodies)
        return self._meaning(bodies)

    def read_changed(self) -> LoadedPredictions | Literal["as before", "being written"]:
        """Return the files' contents if they changed since the last time, "as before" if not, and
        "being written" if they changed while they were read.

        An error in the files is raised at each poll until they change again."""
        stamps = self._stamped()
        if stamps != self._stamps:
            bodies = self._bodies()
            if self._stamped() != stamps:
                return "being written"
            self._stamps, digests = stamps, _digests(bodies)
            if digests != self._digests:
                return self._understood(bodies, digests)
        if self._error is not None:
            raise self._error.with_traceback(None)
        return "as before"

    def _understood(
        self, bodies: Mapping[str, bytes], digests: dict[str, bytes]
    ) -> LoadedPredictions:
        self._digests, self._error = digests, None
        try:
            return self._meaning(bodies)
        except Exception as error:
            self._error = error
            raise

    def _stamped(self) -> dict[str, Stamp]:
        return {place: _stamp(path) for place, path in self.named.items()}

    def _bodies(self) -> dict[str, bytes]:
        bodies = {}
        for place, path in self.named.items():
            try:
                bodies[place] = raw_bytes(path)
            except (OSError, ValueError) as error:  # ValueError: a NUL in the name
                why = error.strerror if isinstance(error, OSError) else error
                raise BadInputError(place, f"cannot be read: {why}") from None
        return bodies


def _stamp(path: Path) -> Stamp:
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return ()
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_dev, stat.st_ino, stat.st_size


def _digests(bodies: Mapping[str, bytes]) -> dict[str, bytes]:
    return {place: hashlib.sha256(body).digest() for place, body in bodies.items()}


class PredictionReloader:
    """Passes the contents of `files` to one live cluster, and again after they changed.

    `counts`: polls with changed contents, and polls at which a file was missing or invalid. `solos`
    and `slowdown_store` (None if progress is not observed) get the new contents, too."""

    def __init__(
        self,
        live: ClusterView,
        files: PredictionFiles,
        loaded: LoadedPredictions,
        every_s: float,
        solos: SoloProfiles,
        slowdown_store: SlowdownStore | None,
    ) -> None:
        """Begin with `loaded`, the contents of the files at the start."""
        self.loaded, self.every_s = loaded, every_s
        self.solos = solos
        self.slowdown_store = slowdown_store
        self.counts = {"applied": 0, "failed": 0}
        self._live, self._files = live, files
        self._failing = ""

    def publish(self) -> None:
        """Pass the contents read at the start to policies."""
        if self.loaded.interference is not None:
            self._live.handle(PolicyInput(INTERFERENCE, to_input(self.loaded.interference)))
        if self.loaded.distances is not None:
            self._live.handle(PolicyInput(MYSTIC, self.loaded.distances))

    async def run(self) -> None:
        """Poll the files every `every_s` seconds, until cancelled."""
        while True:
            await self._live.client.clock.sleep(self.every_s)
            await self.reload()

    async def reload(self) -> None:
        """Poll once; a lasting error is logged only once."""
        try:
            loaded = await asyncio.to_thread(self._files.read_changed)
            if isinstance(loaded, LoadedPredictions):
                self._apply(loaded)
        except Exception as error:
            self._fails(error)
            return
        if loaded == "being written":
            return
        if self._failing:
            log.info("interference: the files can be read again")
            self._failing = ""
        if isinstance(loaded, LoadedPredictions):
            self.counts["applied"] += 1
            log.info("interference: files changed and were read again: %s", self.loaded)

    def _fails(self, error: Exception) -> None:
        self.counts["failed"] += 1
        ours = not isinstance(error, BadInputError)  # an error in Weft: only this poll fails
        text = f"{', '.join(self._files.named)}: {error!r}" if ours else str(error)
        if text != self._failing:
            self._failing = text
            log.warning(
                "interference: %s; the previous contents stay in effect; correct the file, it is "
                "read again within %g s",
                text,
                self.every_s,
                exc_info=error if ours else None,
            )

    def _apply(self, new: LoadedPredictions) -> None:
        """Pass the new contents to the code that uses them; policies get only what changed."""
        old, table = self.loaded, new.interference
        if table is not None and old.interference is not None:
            version = old.interference.version
            if replace(table, version=version) == old.interference:
                table = old.interference
            else:
                table = replace(table, version=max(version + 1, table.version))
        self.loaded = new._replace(interference=table)
        self.solos.replace(new.solos)
        if table is not None and table is not old.interference:
            self._predict(table)
        if new.distances is not None and new.distances != old.distances:
            self._live.handle(PolicyInput(MYSTIC, new.distances))

    def _predict(self, table: InterferenceTable) -> None:
        """Pass the table to policies together with the observations, in one event: a decision may
        follow each event, and must not miss a ban."""
        if self.slowdown_store is not None:
            if any(PREDICTED in policy.inputs for policy in self._live.engine.policies):
                # It takes no table with anything observed in it, and would keep the old one.
                self._live.handle(PolicyInput(PREDICTED, to_input(table)))
            if self.slowdown_store.rebase(table):
                return
        self._live.handle(PolicyInput(INTERFERENCE, to_input(table)))


class ReloadMetrics:
    """Collector for prometheus-client over one `PredictionReloader`."""

    def __init__(self, reloading: PredictionReloader) -> None:
        self._reloading = reloading

    def collect(self) -> Iterator[Metric]:
        """Yield the number of reads by result: applied, or failed."""
        looks = "Polls that found the interference files changed, missing or invalid."
        yield counter("weft_interference_reloads", looks, self._reloading.counts, "result")
