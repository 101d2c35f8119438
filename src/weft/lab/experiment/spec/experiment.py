"""The form of an experiment's file, and its cells: one run each, in the order of the results."""

import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from weft.files.form import Section, place, read_document, read_form
from weft.files.queue_settings import QueuesSettings, check_queues
from weft.files.reading import read_bytes
from weft.lab.experiment.spec.cluster import Cluster, check_cluster
from weft.lab.experiment.spec.measures import MEASURES, present_name
from weft.lab.experiment.spec.workloads import (
    Name,
    OpenbPods,
    Workload,
    check_workload,
    data_texts,
    levels_of,
    no_doubles,
)
from weft.model import BadInputError
from weft.model.nearest import unknown
from weft.model.queue_rules import Order

API_VERSION, KIND = "weft.dev/v1", "Experiment"
_SNAKE = re.compile(r"_([a-z])")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Seeds(Section, frozen=True):
    """Seeds `first`, `first` + 1, …: each gives one workload, the same for all schedulers."""

    first: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    count: Annotated[int, Meta(ge=1, le=10_000)] = 10


class WeightedPolicy(Section, frozen=True):
    """A policy of a profile; `weight` matters if several policies score nodes."""

    policy: Annotated[str, Meta(min_length=1)]
    weight: Annotated[int, Meta(ge=0, le=1_000_000)] = 1


class SchedulerProfile(Section, frozen=True):
    """A scheduler with several policies, like a profile of `WeftConfiguration`.

    The first policy orders the queue, breaks ties and picks GPUs. `preempt`, `order` and `reclaim`
    replace those of an `openb` workload and its queues, so that schedulers can differ in them."""

    name: Name
    policies: Annotated[tuple[WeightedPolicy, ...], Meta(min_length=1)]
    preempt: bool | None = None
    order: Order | None = None
    reclaim: bool | None = None


class ExperimentSpec(Section, frozen=True, kw_only=True):
    """An experiment: every scheduler runs every seed's workload at every level of the axes.

    `schedulers` are policies in the form of `weft simulate --policy`, names of `profiles`, or names
    of the `cluster`'s schedulers, whose `policy` may be a profile too. They are compared with
    `baseline`, by default the first. On a cluster each seed is run `repeats` times. Reports cover
    these `measures`, all if empty. With `decisions`, simulated cells store their decisions, for
    `weft replay` and `weft explain pod --decisions`."""

    api_version: Literal["weft.dev/v1"]
    kind: Literal["Experiment"]
    name: Name
    question: Annotated[str, Meta(max_length=1_000)] = ""
    workload: Workload
    schedulers: Annotated[tuple[str, ...], Meta(min_length=1)]
    profiles: tuple[SchedulerProfile, ...] = ()
    baseline: str = ""
    seeds: Seeds = Seeds()
    repeats: Annotated[int, Meta(ge=1, le=1_000)] = 1
    measures: tuple[str, ...] = ()
    decisions: bool = True
    cluster: Cluster | None = None

    def profile(self, name: str) -> SchedulerProfile | None:
        """Return the profile with this name, or None."""
        return next((profile for profile in self.profiles if profile.name == name), None)

    def decider(self, scheduler: str) -> str:
        """Return the policy or profile that decides for a scheduler in simulations."""
        return scheduler if self.cluster is None else self.cluster.scheduler(scheduler).policy

    @property
    def reference(self) -> str:
        """The scheduler with which all other schedulers are compared."""
        return self.baseline or self.schedulers[0]


def read_spec(path: Path, instead: Mapping[str, Any] | None = None) -> ExperimentSpec:
    """Read the experiment in this file, with data paths as written.

    Fields in `instead` replace the file's; of a section, only the fields that `instead` has."""
    text = read_bytes(path)
    return decode_spec(text, str(path), instead)


def decode_spec(
    text: bytes, where: str, instead: Mapping[str, Any] | None = None
) -> ExperimentSpec:
    """Decode an experiment's file; `where` names the file in errors, `instead` is as in
    `read_spec`."""
    empty = f"is not an {KIND}; `weft experiment init` prints one"
    document = read_document(text, where, API_VERSION, KIND, empty=empty)
    try:
        spec = with_present_measures(read_form(_merged(document, instead or {}), ExperimentSpec))
        _check(spec)
    except BadInputError as error:
        raise BadInputError(place(where, error.where), error.problem) from error
    return spec


def with_present_measures(spec: ExperimentSpec) -> ExperimentSpec:
    """Return an experiment with present measure names; its file may have those of version 0.1.0."""
    return msgspec.structs.replace(spec, measures=tuple(map(present_name, spec.measures)))


def data_paths(
    spec: ExperimentSpec, folder: Path, environment: Mapping[str, str] = os.environ
) -> dict[str, Path]:
    """Return the files that the workload reads, by field.

    `${NAME}` is expanded from the environment; relative paths are relative to `folder`, in which
    the experiment's file is."""
    written = data_texts(spec.workload)
    return {field: folder / _expanded(text, environment) for field, text in written.items()}


def absent_data(data: Mapping[str, Path]) -> list[str]:
    """Return a sentence for each file in `data` that does not exist, with its field's name in the
    file."""
    absent = [(name, path) for name, path in data.items() if not path.exists()]
    return [f"workload.{_SNAKE.sub(_capital, name)}: {_why_absent(path)}" for name, path in absent]


def _why_absent(path: Path) -> str:
    unset = _VARIABLE.search(str(path))
    if unset is None:
        return f"{path} does not exist"
    name, below = unset[1], str(path)[unset.end() :]
    return (
        f"the environment variable {name} is not set; set it to the folder that has "
        f"{below.lstrip('/')}, as in `export {name}=$HOME/data`"
    )


def _capital(match: re.Match[str]) -> str:
    return match[1].upper()


def _merged(document: Mapping[Any, Any], instead: Mapping[str, Any]) -> dict[Any, Any]:
    both = {
        name: _merged(document[name], value)
        if isinstance(value, dict) and isinstance(document.get(name), dict)
        else value
        for name, value in instead.items()
    }
    return {**document, **both}


def _check(spec: ExperimentSpec) -> None:
    """Check rules that types and bounds cannot express; `BadInputError` names the field."""
    no_doubles("schedulers", spec.schedulers)
    if spec.baseline and spec.baseline not in spec.schedulers:
        raise BadInputError("baseline", f"{unknown(spec.baseline, spec.schedulers)}")
    no_doubles("profiles", [profile.name for profile in spec.profiles])
    no_doubles("measures", spec.measures)
    for at, name in enumerate(spec.measures):
        if name not in MEASURES:
            raise BadInputError(f"measures[{at}]", unknown(name, MEASURES))
    if spec.repeats > 1 and spec.cluster is None:
        what = (
            "applies to runs on a cluster: a simulation with the same seed is identical; add "
            "seeds instead"
        )
        raise BadInputError("repeats", what)
    check_workload(spec.workload)
    check_cluster(spec.workload, spec.cluster, spec.schedulers)
    if isinstance(spec.workload, OpenbPods):
        _check_openb(spec.workload, spec.seeds)
    _check_teams(spec)


def teams_of(workload: OpenbPods, profile: SchedulerProfile | None) -> tuple[QueuesSettings, bool]:
    """Return the workload's queues, and whether pods preempt, for the scheduler of this profile.

    Fields of the profile replace the workload's; `profile` is None for other schedulers."""
    queues, preempt = workload.queues, workload.preempt
    if profile is None:
        return queues, preempt
    order = queues.order if profile.order is None else profile.order
    reclaim = queues.reclaim if profile.reclaim is None else profile.reclaim
    queues = msgspec.structs.replace(queues, order=order, reclaim=reclaim)
    return queues, preempt if profile.preempt is None else profile.preempt


def _check_teams(spec: ExperimentSpec) -> None:
    """Check queues and preemption of the workload and of each profile."""
    workload = spec.workload
    timed = isinstance(workload, OpenbPods) and workload.mode == "timed"
    for at, profile in enumerate(spec.profiles):
        for field in ("preempt", "order", "reclaim"):
            if getattr(profile, field) is not None and not timed:
                what = "applies only to a workload of kind openb with mode: timed; remove it"
                raise BadInputError(f"profiles[{at}].{field}", what)
    if not isinstance(workload, OpenbPods):
        return
    if not timed and (workload.queues != QueuesSettings() or not workload.preempt):
        field = "queues" if workload.preempt else "preempt"
        raise BadInputError(
            f"workload.{field}", "applies only to mode: timed, in which pods wait and end"
        )
    _check_queues_of(teams_of(workload, None), "workload")
    for at, profile in enumerate(spec.profiles):
        _check_queues_of(teams_of(workload, profile), f"profiles[{at}]")


def _check_queues_of(teams: tuple[QueuesSettings, bool], where: str) -> None:
    queues, preempt = teams
    try:
        check_queues(queues)
    except BadInputError as error:
        raise BadInputError(f"{where}.{error.where}", error.problem) from None
    if queues.reclaim and not preempt:
        what = "is false, so that queues.reclaim has no effect; change one of them"
        raise BadInputError(f"{where}.preempt", what)


def _check_openb(workload: OpenbPods, seeds: Seeds) -> None:
    timed = workload.mode == "timed"
    if timed and workload.order:
        raise BadInputError(
            "workload.order", "applies to arrivals without times; remove it if timed"
        )
    if timed and len(workload.demands) > 1:
        raise BadInputError("workload.demands", "applies to mode inflation; remove it if timed")
    if workload.order and seeds.first:
        raise BadInputError("seeds.first", "must be 0 with `order`: its orders count from 0")


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    # Unset variables stay in the path, so that the data counts as absent and its cells are skipped.
    return _VARIABLE.sub(lambda match: environment.get(match[1]) or match[0], text)


_PLAIN = "=,:.-_"
"""Characters that stay unquoted in a folder's name, besides letters and digits."""


class CellLevel(msgspec.Struct, frozen=True):
    """A cell's level on one axis: its index among the levels, and its text."""

    axis: str
    index: int
    text: str


class PlannedCell(msgspec.Struct, frozen=True):
    """One planned run: a scheduler with one seed's workload at these levels.

    `repeat` numbers repetitions, from 0."""

    levels: tuple[CellLevel, ...]
    scheduler: str
    seed: int
    repeat: int = 0

    def index(self, axis: str) -> int | None:
        """Return the index of the cell's level on this axis; None if the experiment has no such
        axis."""
        return next((level.index for level in self.levels if level.axis == axis), None)

    @property
    def folder(self) -> str:
        """The cell's folder within the run folder, the same for equal cells of any plan."""
        parts = [f"{level.axis}={level.text}" for level in self.levels]
        return "/".join(quote(part, safe=_PLAIN) for part in [*parts, self.scheduler]) + (
            f"/seed={self.seed}" + (f",repeat={self.repeat}" if self.repeat else "")
        )


def plan(spec: ExperimentSpec) -> list[PlannedCell]:
    """Return every cell, ordered by levels, then schedulers, then seeds, then repeats."""
    axes = [
        [CellLevel(axis, index, text) for index, text in enumerate(texts)]
        for axis, texts in axes_of(spec).items()
    ]
    seeds = range(spec.seeds.first, spec.seeds.first + spec.seeds.count)
    return [
        PlannedCell(levels, scheduler, seed, repeat)
        for levels in itertools.product(*axes)
        for scheduler in spec.schedulers
        for seed in seeds
        for repeat in range(spec.repeats)
    ]


def axes_of(spec: ExperimentSpec) -> dict[str, list[str]]:
    """Return the texts of each axis' levels, by the axis' name."""
    return {
        axis: [_text(level) for level in levels]
        for axis, levels in levels_of(spec.workload).items()
    }


def _text(level: Any) -> str:
    if name := level if isinstance(level, str) else str(getattr(level, "name", "")):
        return name
    short = f"{level:g}"
    return short if float(short) == level else repr(level)
