"""The folder of an experiment's runs: a subfolder per cell, complete or absent.

    experiment.json    the experiment; no times, no host
    cells/…/seed=N/    result.json; jobs.parquet with one row per job; series.parquet with
                       the GPUs' use over time
    manifest.json      when, where and by which versions each cell ran: the only file that
                       differs between two runs of one experiment

A cell is written to a temporary folder, which is renamed when complete. So if the process is
killed, cells are complete or absent, and the next start removes the temporary folders."""

import fcntl
import hashlib
import importlib.util
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from weft.core.framework.policy import PolicyOrigin
from weft.files.reading import UNDECODABLE, raw_bytes, read_bytes
from weft.files.writing import remove_scraps, unwritten, write_whole
from weft.lab.experiment.run.runner import CellResult
from weft.lab.experiment.spec.experiment import (
    ExperimentSpec,
    PlannedCell,
    with_present_measures,
)
from weft.lab.experiment.spec.measures import present_names
from weft.lab.experiment.spec.workloads import AXES, NAMED_AXES
from weft.lab.simulate.results import PolicyRun
from weft.model import BadInputError
from weft.model.errors import install_extra

EXPERIMENT, MANIFEST, CELLS, PARTS = "experiment.json", "manifest.json", "cells", ".parts"
LOCK = ".lock"
RESULT, JOBS, SERIES = "result.json", "jobs.parquet", "series.parquet"
DECISIONS = "decisions.jsonl.gz"
_HOST_FIELDS = ("nodeSelector", "hostIpc", "simulated")
"""Fields of `cluster` that results depend on, besides its schedulers, whose names are in cells."""


class CellRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cell's `result.json`. `hash` covers all that the result depends on; `marks` are as in
    `CellResult`."""

    hash: str
    measures: dict[str, float | None]
    run: Any
    marks: tuple[str, ...] = ()


class CellRows(msgspec.Struct, frozen=True):
    """A cell's use over time (`series`) and jobs, as columns by name; empty if it has none."""

    series: Mapping[str, Any]
    jobs: Mapping[str, Any]


class CellTiming(msgspec.Struct, frozen=True):
    """The time at which a cell ended, its wall seconds, its host, and its version of Weft."""

    ended: str
    wall_s: float
    host: str
    weft: str


class RunManifest(msgspec.Struct, frozen=True):
    """Data that differs between two runs of one experiment: timings by cell folder, and versions of
    Python and libraries."""

    versions: str
    cells: dict[str, CellTiming] = {}


class StoredExperiment(msgspec.Struct, frozen=True):
    """The contents of `experiment.json`: the experiment, hashes of its data files by field, whether
    it is simulated, and the sources of policies that are not Weft's own (see `sources_of`).

    `absent` lists missing data, until a cell has been run."""

    experiment: ExperimentSpec
    data: dict[str, str] = {}
    simulated: bool = True
    sources: dict[str, list[PolicyOrigin]] = {}
    absent: list[str] = []

    def hash_of(self, cell: PlannedCell) -> str:
        """Return the hash of all that the cell's result depends on."""
        settings = self._named_levels()
        named = [settings.get((level.axis, level.text)) for level in cell.levels]
        parts: list[Any] = [self._fixed(), [each for each in named if each is not None]]
        parts.append(cell.folder)
        if self.experiment.cluster is not None:
            parts.append(self.experiment.cluster.scheduler(cell.scheduler))
        profile = self.experiment.profile(self.experiment.decider(cell.scheduler))
        parts += [each for each in (profile, self.sources.get(cell.scheduler)) if each]
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]

    def differing_field(self, other: "StoredExperiment") -> str:
        """Return the first field that differs between both experiments and that common cells depend
        on; "" if none."""
        own, others = self._fixed(), other._fixed()
        fields = [field for field in own if own[field] != others.get(field)]
        mine, theirs = self._named_levels(), other._named_levels()
        names = [key for key in mine if key in theirs and mine[key] != theirs[key]]
        return next(iter([*fields, *(f"level {name} of {axis}" for axis, name in names)]), "")

    def _fixed(self) -> dict[str, Any]:
        """Return the fields that all cells depend on: the workload without its axes, its data, the
        host."""
        spec = self.experiment
        built: dict[str, Any] = msgspec.to_builtins(spec.workload)
        fixed = {f"workload.{name}": value for name, value in built.items() if name not in AXES}
        if built.get("mode") == "timed":  # a single seed replays the trace itself
            fixed["seeds.count (one, or several)"] = spec.seeds.count > 1
        for field, text in self.data.items():  # data counts by its hash, wherever the file is
            fixed[f"workload.{field}"] = text
        if spec.cluster is not None:
            cluster: dict[str, Any] = msgspec.to_builtins(spec.cluster)
            fixed |= {"host (a cluster, or simulation)": self.simulated}
            fixed |= {f"cluster.{name}": cluster[name] for name in _HOST_FIELDS}
        return fixed

    def _named_levels(self) -> dict[tuple[str, str], Any]:
        """Return the settings of levels that have a name, by (axis, name)."""
        built: dict[str, Any] = msgspec.to_builtins(self.experiment.workload)
        return {
            (AXES[field], level["name"]): level
            for field in NAMED_AXES
            for level in built.get(field, ())
        }


class RunStore:
    """The folder with the runs of one experiment."""

    def __init__(self, folder: Path, stored: StoredExperiment) -> None:
        self.folder = folder
        self._stored = stored
        self._held: BinaryIO | None = None

    def __reduce__(self) -> tuple[type["RunStore"], tuple[Path, StoredExperiment]]:
        """Pickle the store for workers, without its lock."""
        return RunStore, (self.folder, self._stored)

    def in_folder(self, folder: Path) -> "RunStore":
        """Return a store of the same experiment in another folder."""
        return RunStore(folder, self._stored)

    def begin(self) -> None:
        """Create the folder or continue in it, and remove incomplete cells of a killed run.

        `BadInputError` if it has another experiment's runs, is locked by another process, or cannot
        be written."""
        if importlib.util.find_spec("pyarrow") is None:
            what = (
                f"is not installed, and jobs are stored as Parquet; {install_extra('experiments')}"
            )
            raise BadInputError("pyarrow", what)
        try:
            (self.folder / CELLS).mkdir(parents=True, exist_ok=True)
            self._lock()
            shutil.rmtree(self.folder / PARTS, ignore_errors=True)
            (self.folder / PARTS).mkdir()
            for name in (EXPERIMENT, MANIFEST):
                remove_scraps(self.folder / name)
            self._check_same()
            write_whole(self.folder / EXPERIMENT, _json(self._stored))
        except OSError as error:
            self.close()
            raise unwritten(self.folder, error) from None
        except BadInputError:
            self.close()
            raise

    def _lock(self) -> None:
        """Lock the folder for this process; workers do not inherit such a lock."""
        self._held = (self.folder / LOCK).open("ab")
        try:
            fcntl.lockf(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            self._held.close()
            self._held = None
            what = "is in use by another process; wait for it, or name another --out"
            raise BadInputError(str(self.folder), what) from None

    def _check_same(self) -> None:
        path = self.folder / EXPERIMENT
        earlier = _decoded(path) if path.exists() else None
        if earlier is None or earlier.absent:
            return
        differs = self._stored.differing_field(earlier)
        if differs:
            what = f"holds runs with another {differs}; name another --out, or remove the folder"
            raise BadInputError(str(self.folder), what)

    def note_absent(self) -> None:
        """Store the list of absent data, for reports, unless the folder has an experiment
        already."""
        if not (self.folder / EXPERIMENT).exists():
            self.begin()
            self.close()

    @property
    def absent(self) -> list[str]:
        """Descriptions of missing data; empty if there are runs."""
        return self._stored.absent

    def done(self, cells: Sequence[PlannedCell]) -> set[PlannedCell]:
        """Return those of `cells` whose results are in the folder."""
        return set(self.records(cells))

    def records(self, cells: Sequence[PlannedCell]) -> dict[PlannedCell, CellRecord]:
        """Return the results of those of `cells` that are in the folder."""
        return {cell: record for cell in cells if (record := self.record(cell)) is not None}

    def record(self, cell: PlannedCell) -> CellRecord | None:
        """Return a cell's result; None if it is absent, unreadable, or of another experiment."""
        path = self.place(cell) / RESULT
        try:
            record = msgspec.json.decode(path.read_bytes(), type=CellRecord)
        except (OSError, *UNDECODABLE):
            return None
        if record.hash != self._stored.hash_of(cell):
            return None
        measures, run = present_names(record.measures), present_names(record.run)
        return msgspec.structs.replace(record, measures=measures, run=run)

    def trace_runs(self, cells: Iterable[PlannedCell]) -> list[PolicyRun]:
        """Return the runs of those of `cells` that are in the folder; the workload must be a
        trace's pods.

        `BadInputError` if this version cannot read a run."""
        return [
            self._trace_run(cell, record)
            for cell in cells
            if (record := self.record(cell)) is not None
        ]

    def _trace_run(self, cell: PlannedCell, record: CellRecord) -> PolicyRun:
        try:
            return msgspec.convert(record.run, PolicyRun)
        except msgspec.ValidationError as error:
            what = "was written by another version; remove the folder, run the experiment again"
            raise BadInputError(str(self.place(cell)), f"{what} ({error})") from None

    def differing_field(self, other: "RunStore") -> str:
        """Return the first field in which this experiment differs from another folder's; "" if none
        does."""
        return self._stored.differing_field(other._stored)

    def place(self, cell: PlannedCell) -> Path:
        """Return the folder of a cell, whether it exists or not."""
        return self.folder / CELLS / cell.folder

    def rows(self, cell: PlannedCell) -> CellRows:
        """Return the cell's use over time and its jobs, as columns."""
        place = self.place(cell)
        return CellRows(read_rows(place / SERIES), read_rows(place / JOBS))

    def write(self, cell: PlannedCell, result: CellResult) -> None:
        """Write the cell atomically, replacing an existing one."""
        part = self.folder / PARTS / f"{os.getpid()}-{abs(hash(cell.folder))}"
        part.mkdir()
        if result.jobs:
            write_rows(part / JOBS, result.jobs)
        if result.usage:
            write_rows(part / SERIES, result.usage)
        if result.decisions:
            (part / DECISIONS).write_bytes(result.decisions)
        record = CellRecord(self._stored.hash_of(cell), result.measures, result.run, result.marks)
        (part / RESULT).write_bytes(_json(record))
        place = self.place(cell)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            shutil.rmtree(place)
        part.rename(place)

    def manifest(self) -> RunManifest | None:
        """Return the manifest of earlier runs; None if absent or unreadable."""
        try:
            return msgspec.json.decode((self.folder / MANIFEST).read_bytes(), type=RunManifest)
        except (OSError, *UNDECODABLE):
            return None

    def write_manifest(self, manifest: RunManifest) -> None:
        """Write the manifest, replacing an existing one."""
        write_whole(self.folder / MANIFEST, _json(manifest))

    def close(self) -> None:
        """Remove the folder for incomplete cells, and unlock; no effect without `begin`."""
        if self._held is not None:
            shutil.rmtree(self.folder / PARTS, ignore_errors=True)
            self._held.close()
            self._held = None


def marks_of(records: Mapping[PlannedCell, CellRecord]) -> dict[str, tuple[str, ...]]:
    """Return the reasons why cells are left out, by cell folder."""
    return {cell.folder: record.marks for cell, record in records.items() if record.marks}


def read_store(folder: Path) -> tuple[ExperimentSpec, RunStore]:
    """Return the experiment stored in this folder, and its store; `BadInputError` if there is
    none."""
    path = folder / EXPERIMENT
    if not path.exists():
        what = "holds no runs; `weft experiment run FILE --out FOLDER` makes them"
        raise BadInputError(str(folder), what)
    stored = _decoded(path)
    return stored.experiment, RunStore(folder, stored)


def stored_experiment(
    spec: ExperimentSpec,
    data: Mapping[str, Path],
    *,
    simulated: bool = True,
    sources: Mapping[str, list[PolicyOrigin]] | None = None,
) -> StoredExperiment:
    """Return the experiment with hashes of its data; `FileNotFoundError` if a file is absent."""
    hashes = {field: _hash_of(path) for field, path in data.items()}
    return StoredExperiment(spec, hashes, simulated, dict(sources or {}))


def _hash_of(path: Path) -> str:
    """Return the hash of a file, or of a folder's files with their names."""
    if not path.is_dir():
        return hashlib.sha256(raw_bytes(path)).hexdigest()
    files = sorted(each for each in path.rglob("*") if each.is_file())
    parts = [(str(each.relative_to(path)), _hash_of(each)) for each in files]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def write_rows(path: Path, rows: Sequence[msgspec.Struct]) -> None:
    """Write rows as a Parquet file, with the structs' fields as columns."""
    import pyarrow
    import pyarrow.parquet

    fields = msgspec.structs.fields(rows[0])
    kinds = {"str": "string", "int": "int32"}
    kind_of = {field.name: kinds.get(_type_name(field.type), "float64") for field in fields}
    columns = {name: [getattr(row, name) for row in rows] for name in kind_of}
    schema = pyarrow.schema(kind_of.items())
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), path)


def read_rows(path: Path) -> dict[str, Any]:
    """Return columns as NumPy arrays by name; empty if the file does not exist."""
    import pyarrow.parquet

    if not path.is_file():
        return {}
    try:
        table = pyarrow.parquet.read_table(path, use_threads=False)
    except (pyarrow.ArrowException, OSError) as error:
        what = f"cannot be read: {error}; remove its folder, and run the cell again"
        raise BadInputError(str(path), what) from None
    return {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}


def _type_name(kind: Any) -> str:
    return getattr(kind, "__name__", "")


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _decoded(path: Path) -> StoredExperiment:
    try:
        stored = msgspec.json.decode(read_bytes(path), type=StoredExperiment)
    except UNDECODABLE as error:
        raise BadInputError(
            str(path), f"cannot be decoded: {error}; remove it and run again"
        ) from None
    return msgspec.structs.replace(stored, experiment=with_present_measures(stored.experiment))
