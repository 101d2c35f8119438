"""The form of an experiment's file: which workload, which schedulers, over which axes.

Everything that a run depends on is a field, data paths too, so that a file is run unchanged on
other data: `${WEFT_DATA}/openb/…` stands for what the environment says.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from weft.files.form import Section, place, read_document, read_form
from weft.files.reading import read_bytes, unreadable
from weft.lab.simulate.sharing.exporter import read_spoof
from weft.model import BadInputError
from weft.model.nearest import unknown

DATA_FIELDS = ("table", "nodes", "pods", "order")
"""Fields of a workload that name files."""
API_VERSION, KIND = "weft.dev/v1", "Experiment"
_NAME = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

Name = Annotated[
    str,
    Meta(
        pattern=_NAME,
        extra={"refused": "{} is no name; write up to 63 lower-case letters, digits and -"},
    ),
]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]


class Seeds(Section, frozen=True):
    """Seeds `first`, `first` + 1, …: each is one workload, the same for all schedulers."""

    first: Annotated[int, Meta(ge=0)] = 0
    count: Annotated[int, Meta(ge=1, le=10_000)] = 10


class MetricFaults(Section, frozen=True):
    """One level of the axis `faults`: what goes wrong between a card and the scheduler."""

    name: Name = "sound"
    delay_seconds: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    dropped: Ratio = 0.0
    missing: Ratio = 0.0
    noise: Annotated[float, Meta(ge=0, le=100)] = 0.0
    spoof: str = ""
    frozen_seconds: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    frozen_busy: bool = False


class OverprovisionedJobs(Section, frozen=True, tag_field="kind", tag="overprovisioned"):
    """Thirty inference jobs a card that ask for more memory than they use (Ferikoglou et al.).

    Axes: `percents` of over-provisioning, `faults` of the metrics.
    """

    percents: Annotated[tuple[Annotated[int, Meta(ge=0, le=1_000)], ...], Meta(min_length=1)] = (
        0,
        50,
        100,
        150,
        200,
        250,
    )
    faults: Annotated[tuple[MetricFaults, ...], Meta(min_length=1)] = (MetricFaults(),)
    mix: Literal["ssd", "rigid", "mixed", "peaky", "late", "grown"] = "ssd"
    cards: Annotated[int, Meta(ge=1, le=10_000)] = 1
    harvest_limit: Annotated[float, Meta(ge=1, le=100)] = 4.0
    scrape_seconds: Annotated[float, Meta(ge=0.1, le=3_600)] = 5.0


class MeasuredPairs(Section, frozen=True, tag_field="kind", tag="pairs"):
    """Jobs that slow each other down as measured pairs did (Gavel's CSV, Co-scheML's JSON).

    Axis: `loads`, jobs that come by mean time alone for each GPU. `told` is what policies know.
    """

    table: str
    source: str = "oracle_throughputs"
    gpu: str = "v100"
    loads: Annotated[tuple[Annotated[float, Meta(gt=0, le=100)], ...], Meta(min_length=1)] = (
        0.7,
        0.9,
        1.1,
    )
    gpus: Annotated[int, Meta(ge=1, le=10_000)] = 16
    jobs: Count = 400
    told: Literal["trained", "ridge", "truth"] = "trained"
    watched: bool = False


class OpenbPods(Section, frozen=True, tag_field="kind", tag="openb"):
    """Pods of a trace in openb's form that never leave (`inflation`) or come and go (`timed`).

    `order` is a file of published arrival orders. Axis: `demands` in percent of the GPUs, of
    inflation.
    """

    nodes: str
    pods: str
    order: str = ""
    mode: Literal["inflation", "timed"] = "inflation"
    demands: Annotated[tuple[Annotated[float, Meta(gt=0, le=1_000)], ...], Meta(min_length=1)] = (
        130.0,
    )
    compress: Annotated[float, Meta(gt=0)] = 1.0


Workload = OverprovisionedJobs | MeasuredPairs | OpenbPods


class ExperimentSpec(Section, frozen=True, kw_only=True):
    """An experiment: every scheduler meets every seed's workload at every level of the axes.

    `schedulers` are policies as `weft simulate --policy` takes them. Others are compared with the
    `baseline`, the first of them where it is left out.
    """

    api_version: Literal["weft.dev/v1"]
    kind: Literal["Experiment"]
    name: Name
    question: Annotated[str, Meta(max_length=1_000)] = ""
    workload: Workload
    schedulers: Annotated[tuple[str, ...], Meta(min_length=1)]
    baseline: str = ""
    seeds: Seeds = Seeds()

    @property
    def reference(self) -> str:
        """The scheduler that others are compared with."""
        return self.baseline or self.schedulers[0]


def read_spec(path: Path, instead: Mapping[str, Any] | None = None) -> ExperimentSpec:
    """The experiment in this file, data paths as they are written there.

    Fields in `instead` take the place of the file's, those of a section one by one.
    """
    try:
        text = read_bytes(path)
    except OSError as error:
        raise BadInputError(str(path), f"cannot be read: {unreadable(path, error)}") from error
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
    written = {field: getattr(spec.workload, field, "") for field in DATA_FIELDS}
    return {field: folder / _expanded(text, environment) for field, text in written.items() if text}


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
    _no_doubles("schedulers", spec.schedulers)
    if spec.baseline and spec.baseline not in spec.schedulers:
        raise BadInputError("baseline", f"{unknown(spec.baseline, spec.schedulers)}")
    workload = spec.workload
    for field in DATA_FIELDS:
        if "\0" in getattr(workload, field, ""):
            raise BadInputError(f"workload.{field}", f"{getattr(workload, field)!r} is no path")
    if isinstance(workload, OverprovisionedJobs):
        _no_doubles("workload.percents", workload.percents)
        _no_doubles("workload.faults", [faults.name for faults in workload.faults])
        for at, faults in enumerate(workload.faults):
            _check_faults(faults, f"workload.faults[{at}]")
    elif isinstance(workload, MeasuredPairs):
        _no_doubles("workload.loads", workload.loads)
    else:
        _check_openb(workload, spec.seeds)


def _check_faults(faults: MetricFaults, at: str) -> None:
    try:
        read_spoof(faults.spoof)
    except BadInputError as error:
        raise BadInputError(f"{at}.spoof", f"{faults.spoof!r} {error.problem}") from None
    if faults.frozen_busy and faults.frozen_seconds is None:
        what = "says what a frozen page shows; add frozenSeconds"
        raise BadInputError(f"{at}.frozenBusy", what)


def _check_openb(workload: OpenbPods, seeds: Seeds) -> None:
    _no_doubles("workload.demands", workload.demands)
    timed = workload.mode == "timed"
    if timed and workload.order:
        raise BadInputError("workload.order", "is of arrivals without times; leave it out if timed")
    if timed and len(workload.demands) > 1:
        raise BadInputError("workload.demands", "is of inflation; leave it out if timed")
    if workload.order and seeds.first:
        raise BadInputError("seeds.first", "is for arrivals drawn by seed; `order` has its own")


def _no_doubles(field: str, values: Any) -> None:
    for at, value in enumerate(values):
        if value in values[:at]:
            raise BadInputError(f"{field}[{at}]", f"{value!r} stands there twice")


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    # An unset variable stays: the data is absent then, and its cells are skipped, visibly.
    return _VARIABLE.sub(lambda match: environment.get(match[1]) or match[0], text)
