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
from weft.files.reading import read_bytes
from weft.lab.experiment.spec.cluster import Cluster, check_cluster
from weft.lab.experiment.spec.measures import MEASURES
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

API_VERSION, KIND = "weft.dev/v1", "Experiment"
_SNAKE = re.compile(r"_([a-z])")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Seeds(Section, frozen=True):
    """Seeds `first`, `first` + 1, …: each is one workload, the same for all schedulers."""

    first: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    count: Annotated[int, Meta(ge=1, le=10_000)] = 10


class WeightedPolicy(Section, frozen=True):
    """A policy of a profile, written as among the schedulers. `weight` counts where several score."""

    policy: Annotated[str, Meta(min_length=1)]
    weight: Annotated[int, Meta(ge=0, le=1_000_000)] = 1


class SchedulerProfile(Section, frozen=True):
    """A scheduler of several policies, as a profile of `WeftConfiguration`.

    The first queues, breaks ties and picks GPUs.
    """

    name: Name
    policies: Annotated[tuple[WeightedPolicy, ...], Meta(min_length=1)]


class ExperimentSpec(Section, frozen=True, kw_only=True):
    """An experiment: every scheduler meets every seed's workload at every level of the axes.

    `schedulers` are policies as `weft simulate --policy` takes them, names of `profiles`, or names
    of those of the `cluster`, whose `policy` may be a profile too. Others are compared with the
    `baseline`, the first where it is left out. On a cluster each turn is run `repeats` times.
    Reports are about these `measures`, all if empty. Simulated cells keep their `decisions`, for
    `weft replay` and `weft explain pod --decisions`.
    """

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
        """The profile of this name; None where it is none."""
        return next((profile for profile in self.profiles if profile.name == name), None)

    def decider(self, scheduler: str) -> str:
        """The policy or profile that a scheduler is in simulations."""
        return scheduler if self.cluster is None else self.cluster.scheduler(scheduler).policy

    @property
    def reference(self) -> str:
        """The scheduler that others are compared with."""
        return self.baseline or self.schedulers[0]


def read_spec(path: Path, instead: Mapping[str, Any] | None = None) -> ExperimentSpec:
    """The experiment in this file, data paths as they are written there.

    Fields in `instead` take the place of the file's, those of a section one by one.
    """
    text = read_bytes(path)
    return decode_spec(text, str(path), instead)


def decode_spec(
    text: bytes, where: str, instead: Mapping[str, Any] | None = None
) -> ExperimentSpec:
    """The experiment in this text; `where` names it in errors, `instead` is as in `read_spec`."""
    empty = f"is no {KIND}; `weft experiment init` prints one"
    document = read_document(text, where, API_VERSION, KIND, empty=empty)
    try:
        spec = read_form(_merged(document, instead or {}), ExperimentSpec)
        _check(spec)
    except BadInputError as error:
        raise BadInputError(place(where, error.where), error.problem) from error
    return spec


def data_paths(
    spec: ExperimentSpec, folder: Path, environment: Mapping[str, str] = os.environ
) -> dict[str, Path]:
    """The files that the workload reads, by field: `${NAME}` is what the environment says, and
    paths begin at the `folder` that the experiment's file is in."""
    written = data_texts(spec.workload)
    return {field: folder / _expanded(text, environment) for field, text in written.items()}


def absent_data(data: Mapping[str, Path]) -> list[str]:
    """A sentence for each of `data_paths` that is not there, with its field as it is written."""
    absent = [(name, path) for name, path in data.items() if not path.exists()]
    return [f"workload.{_SNAKE.sub(_capital, name)}: {_why_absent(path)}" for name, path in absent]


def _why_absent(path: Path) -> str:
    unset = _VARIABLE.search(str(path))
    if unset is None:
        return f"{path} is not there"
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
    """Checks what the types and their bounds cannot say."""
    no_doubles("schedulers", spec.schedulers)
    if spec.baseline and spec.baseline not in spec.schedulers:
        raise BadInputError("baseline", f"{unknown(spec.baseline, spec.schedulers)}")
    no_doubles("profiles", [profile.name for profile in spec.profiles])
    no_doubles("measures", spec.measures)
    for at, name in enumerate(spec.measures):
        if name not in MEASURES:
            raise BadInputError(f"measures[{at}]", unknown(name, MEASURES))
    if spec.repeats > 1 and spec.cluster is None:
        what = "is of turns on a cluster: simulated, the same seed gives the same; add seeds"
        raise BadInputError("repeats", what)
    check_workload(spec.workload)
    check_cluster(spec.workload, spec.cluster, spec.schedulers)
    if isinstance(spec.workload, OpenbPods):
        _check_openb(spec.workload, spec.seeds)


def _check_openb(workload: OpenbPods, seeds: Seeds) -> None:
    timed = workload.mode == "timed"
    if timed and workload.order:
        raise BadInputError("workload.order", "is of arrivals without times; leave it out if timed")
    if timed and len(workload.demands) > 1:
        raise BadInputError("workload.demands", "is of inflation; leave it out if timed")
    if workload.order and seeds.first:
        raise BadInputError("seeds.first", "is for arrivals drawn by seed; `order` has its own")


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    # An unset variable stays: the data is absent then, and its cells are skipped, visibly.
    return _VARIABLE.sub(lambda match: environment.get(match[1]) or match[0], text)


_PLAIN = "=,:.-_"
"""Characters that stay as they are in a folder's name, beside letters and digits."""


class CellLevel(msgspec.Struct, frozen=True):
    """A cell's place on one axis: `index` of the axis' levels, and how it is written."""

    axis: str
    index: int
    text: str


class PlannedCell(msgspec.Struct, frozen=True):
    """One run: a scheduler meets one seed's workload at these levels, for the `repeat`-th time."""

    levels: tuple[CellLevel, ...]
    scheduler: str
    seed: int
    repeat: int = 0

    def index(self, axis: str) -> int | None:
        """The number of its level on this axis; None where the experiment has no such axis."""
        return next((level.index for level in self.levels if level.axis == axis), None)

    @property
    def folder(self) -> str:
        """Its folder within the run's, the same for equal cells of any plan."""
        parts = [f"{level.axis}={level.text}" for level in self.levels]
        return "/".join(quote(part, safe=_PLAIN) for part in [*parts, self.scheduler]) + (
            f"/seed={self.seed}" + (f",repeat={self.repeat}" if self.repeat else "")
        )


def plan(spec: ExperimentSpec) -> list[PlannedCell]:
    """Every cell: levels, then schedulers, then seeds, then repeats."""
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
    """The levels of each axis, as they are written, by its name."""
    return {
        axis: [_text(level) for level in levels]
        for axis, levels in levels_of(spec.workload).items()
    }


def _text(level: Any) -> str:
    if name := str(getattr(level, "name", "")):
        return name
    short = f"{level:g}"
    return short if float(short) == level else repr(level)
