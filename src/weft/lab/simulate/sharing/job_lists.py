"""Reads users' own job lists: the request of each job, its GPU use over time, and how long it runs.

YAML, `kind: JobList`: `jobs`, each with `name`, `askMib` and `phases` of `seconds` and `memoryMib`.
CSV: one row per phase; consecutive rows with one name are the phases of one job. The list of
Ferikoglou et al.'s generator is read too."""

import csv
import random
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from weft.files.form import Section, place, read_document, read_form
from weft.files.reading import UNDECODABLE, read_bytes
from weft.lab.simulate.sharing.job import NO_QUERIES, SECOND_NS, Job, JobPhase, QueryStream
from weft.model import BadInputError
from weft.model.nearest import unknown
from weft.model.number_text import decimal_number

# --- Reads the job list of Ferikoglou et al.'s generator: programs, and how often each is run -----
#
# JSON: a list of `{model, memory_request_MiB, list: [{queries, replicas}]}`, with fields that their
# images need (`MODEL_DIR`, `DATA_DIR`, `backend`, `scenario`, `image_name`, `container_name`).

FOR_IMAGES = (
    "MODEL_DIR",
    "DATA_DIR",
    "backend",
    "scenario",
    "container_name",
    "image_name",
    "memory_request_GB",
)
"""Fields needed to run a program in its image, but not to simulate it."""


class QueriesAndReplicas(msgspec.Struct, frozen=True):
    """A number of replicas, and the number of queries that each answers."""

    queries: Annotated[int, Meta(ge=1)]
    replicas: Annotated[int, Meta(ge=0, le=10_000)]


class GeneratedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program in the job list of Ferikoglou et al.'s generator."""

    model: str
    memory_mib: Annotated[int, Meta(ge=1)] = msgspec.field(name="memory_request_MiB")
    memory_gib: Annotated[int, Meta(ge=0)] = msgspec.field(name="memory_request_GB", default=0)
    runs: tuple[QueriesAndReplicas, ...] = msgspec.field(name="list")
    model_dir: str = msgspec.field(name="MODEL_DIR", default="")
    data_dir: str = msgspec.field(name="DATA_DIR", default="")
    backend: str = ""
    scenario: str = ""
    container_name: str = ""
    image_name: str = ""


def read_generated(path: Path, *, for_images: bool = False) -> tuple[GeneratedProgram, ...]:
    """Read the programs of a generator's list; with `for_images`, check the fields for images.

    `BadInputError` names the entry and the field."""
    try:
        programs = msgspec.json.decode(read_bytes(path), type=tuple[GeneratedProgram, ...])
    except UNDECODABLE as error:
        what = f"is not a list of programs with model, memory_request_MiB and list: {error}"
        raise BadInputError(str(path), what) from None
    for number, program in enumerate(programs if for_images else ()):
        said = msgspec.to_builtins(program)
        absent = [name for name in FOR_IMAGES if not said[name]]
        if absent:
            raise BadInputError(f"{path}: [{number}].{absent[0]}", "is missing; a Job needs it")
    return programs


LIST_VERSION, LIST_KIND = "weft.dev/v1", "JobList"
Ratio = Annotated[float, Meta(ge=0, le=1)]
Mib = Annotated[int, Meta(ge=0, le=10_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
JobClass = Literal["", "best-effort", "batch", "latency-critical"]
REQUIRED, OPTIONAL = (
    ("name", "ask_mib", "memory_mib", "seconds"),
    ("count", "class", "arrives_s", "sm_active", "dram_active", "gpu_util"),
)
START_NS, END_NS = 3_600_000_000, 900_000_000
"""Time from binding to the container's start, and from its exit to the job's completion."""
QUERIES = 1_024
"""Number of queries to which the times in `ALONE_S` apply."""
ALONE_S = {"ssd-mobilenet": 114.1, "resnet50": 138.9, "mobilenet": 52.1}
"""Seconds for `QUERIES` queries alone, by program: the first from published logs, the others are
estimates."""


class ListedPhase(Section, frozen=True):
    """A part of a job's work, alone on a GPU; ratios are of the GPU."""

    seconds: Seconds
    memory_mib: Mib
    sm_active: Ratio = 0.0
    dram_active: Ratio = 0.0
    gpu_util: Ratio | None = None

    @property
    def phase(self) -> JobPhase:
        """The phase as the simulation's `JobPhase`; GPU_UTIL defaults to SM_ACTIVE."""
        util = self.sm_active if self.gpu_util is None else self.gpu_util
        took_ns = round(self.seconds * SECOND_NS)
        return JobPhase(took_ns, self.memory_mib, self.sm_active, self.dram_active, util)


class ListedQueries(Section, frozen=True):
    """Queries that a job answers: milliseconds for one alone, and the limit from which one is
    late."""

    alone_ms: Annotated[float, Meta(gt=0, le=1e9)]
    limit_ms: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    per_second: Annotated[float, Meta(ge=0, le=1e6)] = 0.0

    @property
    def stream(self) -> QueryStream:
        """The queries as the simulation's `QueryStream`."""
        return QueryStream(round(self.alone_ms * 1e6), round(self.limit_ms * 1e6), self.per_second)


class ListedJob(Section, frozen=True):
    """A job of the list, run `count` times. Without `arrivesSeconds` the experiment sets arrival
    times."""

    name: Annotated[str, Meta(min_length=1, max_length=253)]
    ask_mib: Annotated[int, Meta(ge=1, le=10_000_000)]
    phases: Annotated[tuple[ListedPhase, ...], Meta(min_length=1)]
    count: Annotated[int, Meta(ge=1, le=100_000)] = 1
    job_class: JobClass = ""
    arrives_seconds: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    queries: ListedQueries | None = None
    start_seconds: Annotated[float, Meta(ge=0, le=1e6)] = 3.6


class JobList(Section, frozen=True, kw_only=True):
    """The contents of a job list's file."""

    api_version: Literal["weft.dev/v1"]
    kind: Literal["JobList"]
    jobs: Annotated[tuple[ListedJob, ...], Meta(min_length=1)]


def read_jobs(path: Path) -> tuple[ListedJob, ...]:
    """Read a job list as CSV if its suffix is .csv, else as YAML; `BadInputError` names the field
    or row."""
    if path.suffix.lower() == ".csv":
        return _read_csv(path)
    text = read_bytes(path)
    empty = f"is not a {LIST_KIND}; write kind: {LIST_KIND} and jobs"
    document = read_document(text, str(path), LIST_VERSION, LIST_KIND, empty=empty)
    try:
        return read_form(document, JobList).jobs
    except BadInputError as error:
        raise BadInputError(place(str(path), error.where), error.problem) from error


def jobs_of(
    listed: tuple[ListedJob, ...], percent: int, most_mib: int, seed: int
) -> tuple[Job, ...]:
    """Return the jobs, one per copy, shuffled by seed.

    Each requests `percent` more than listed, at most a GPU's `most_mib`. Jobs without an arrival
    time in the list arrive at 0."""
    copies = [(job, number) for job in listed for number in range(job.count)]
    random.Random(f"weft-job-list-{seed}").shuffle(copies)
    made = []
    for job, number in copies:
        asks_mib = min(job.ask_mib * (100 + percent) // 100, most_mib)
        phases = tuple(phase.phase for phase in job.phases)
        arrives_ns = round((job.arrives_seconds or 0.0) * SECOND_NS)
        made.append(
            Job(
                f"{job.name}-{number:04d}",
                job.name,
                arrives_ns,
                asks_mib,
                phases,
                round(job.start_seconds * SECOND_NS),
                END_NS,
                job.job_class,
                queries=job.queries.stream if job.queries else NO_QUERIES,
            )
        )
    return tuple(made)


def _read_csv(path: Path) -> tuple[ListedJob, ...]:
    try:
        rows = list(csv.DictReader(read_bytes(path).decode("utf-8-sig").splitlines()))
    except UnicodeDecodeError:
        raise BadInputError(str(path), "cannot be read: not UTF-8 text") from None
    except csv.Error as error:
        raise BadInputError(str(path), f"is not CSV: {error}") from None
    columns = list(rows[0]) if rows else []
    lacking = [name for name in REQUIRED if name not in columns]
    strange = [name for name in columns if name not in {*REQUIRED, *OPTIONAL}]
    if lacking:
        has = ", ".join(columns) or "none"
        raise BadInputError(str(path), f"lacks column {lacking[0]}; it has {has}")
    if strange:
        raise BadInputError(str(path), f"column {unknown(strange[0], (*REQUIRED, *OPTIONAL))}")
    jobs: list[dict[str, Any]] = []
    for line, row in enumerate(rows, 2):
        where = f"{path}, line {line}"
        phase = {
            "seconds": _number(where, row, "seconds"),
            "memoryMib": _whole(where, row, "memory_mib"),
            "smActive": _number(where, row, "sm_active", "0"),
            "dramActive": _number(where, row, "dram_active", "0"),
        }
        if row.get("gpu_util"):
            phase["gpuUtil"] = _number(where, row, "gpu_util")
        if jobs and jobs[-1]["name"] == row["name"]:
            jobs[-1]["phases"].append(phase)
            continue
        job: dict[str, Any] = {"name": row["name"], "phases": [phase]}
        job["askMib"] = _whole(where, row, "ask_mib")
        job["count"] = _whole(where, row, "count", "1")
        job["jobClass"] = row.get("class") or ""
        if row.get("arrives_s"):
            job["arrivesSeconds"] = _number(where, row, "arrives_s")
        jobs.append(job)
    try:
        return read_form({"jobs": jobs}, _CsvJobs).jobs
    except BadInputError as error:
        raise BadInputError(f"{path}: {error.where}", error.problem) from error


class _CsvJobs(Section, frozen=True):
    jobs: tuple[ListedJob, ...]


def _number(where: str, row: dict[str, str], column: str, default: str = "") -> float:
    text = row.get(column) or default
    try:
        return decimal_number(text)
    except ValueError:
        raise BadInputError(f"{where}, column {column}", f"{text!r} is not a number") from None


def _whole(where: str, row: dict[str, str], column: str, default: str = "") -> int:
    value = _number(where, row, column, default)
    if value != int(value):
        raise BadInputError(f"{where}, column {column}", f"{value:g} is not a whole number")
    return int(value)


# --- the generator's list -------------------------------------------------------------------------


class QueryTimes(msgspec.Struct, frozen=True):
    """Times in seconds: one query alone, by model; loading; and the limit from which a query is
    late."""

    each_s: dict[str, float] = {}
    loading_s: float = 17.4
    limit_s: float = 0.0


def listed_programs(
    path: Path, programs: tuple[GeneratedProgram, ...], times: QueryTimes
) -> tuple[ListedJob, ...]:
    """Return one job per program and number of queries: it loads, then holds its memory to the end.

    `BadInputError` if a model's query time is unknown; the message names the field that sets it."""
    made = []
    for number, program in enumerate(programs):
        each_s = times.each_s.get(program.model) or _known_s(program.model)
        if each_s is None:
            where = f"{path}: [{number}].model"
            what = f"{program.model!r} has no known query time; write it in querySeconds"
            raise BadInputError(where, what)
        for asked in filter(lambda run: run.replicas, program.runs):
            phases = (
                ListedPhase(max(0.001, times.loading_s), min(540, program.memory_mib)),
                ListedPhase(asked.queries * each_s, program.memory_mib, 0.15, 0.075),
            )
            queries = ListedQueries(each_s * 1000, times.limit_s * 1000)
            name = f"{program.container_name or program.model}-{asked.queries}"
            made.append(
                ListedJob(name, program.memory_mib, phases, asked.replicas, queries=queries)
            )
    return tuple(made)


def _known_s(model: str) -> float | None:
    times_s = [each for name, each in ALONE_S.items() if model.startswith(name)]
    return times_s[0] / QUERIES if times_s else None
