"""The interference dataset as a file: applications alone, co-located, and combinations that fail.

    {"apiVersion": "weft.dev/v1", "kind": "InterferenceDataset", "solo": […], "corun": […], …}

Plain JSON of one version; unknown fields are an error, so that a misspelt field does not go
unnoticed. Features have the names of `telemetry/meaning/metric_names`; rates are iterations per
second, and absent where they were not counted.
"""

import codecs
import math
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from weft.interference import records
from weft.interference.records import FASTEST, FORMER_NAMES, CoLocatedRun, Measurements
from weft.model import BadInputError
from weft.model.former_names import with_todays_names

API_VERSION, KIND = "weft.dev/v1", "InterferenceDataset"
OUT_OF_MEMORY = "out-of-memory"
TIME_SLICING, MPS = "time-slicing", "mps"
ISOLATIONS = (TIME_SLICING, MPS)
BLANK = 2.0**53
"""Lower limit of the values that DCGM writes instead of a missing reading."""
_ROUNDED = 0.02
"""A ratio may lie this far outside 0 to 1, through rounding or counters that are read slightly
late."""


class Feature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mean and 95th percentile of a feature over the steady state."""

    mean: float
    p95: float


class SoloProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An application alone on a GPU: medians over `runs` runs, or over that many windows.

    `memory_mib` is the GPU memory held, `peak_mib` its maximum. `seconds` is the total time
    observed."""

    application: str
    gpu_model: str
    isolation: str
    features: dict[str, Feature] = {}
    memory_mib: int = 0
    peak_mib: int = 0
    rate_per_s: float | None = None
    runs: int = 0
    seconds: float = 0
    source: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The entry's identity: a dataset has at most one entry with this key."""
        return self.application, self.gpu_model, self.isolation

    @property
    def place(self) -> str:
        """The entry's name in error messages."""
        return f"{self.application or '-'} on {self.gpu_model} {self.isolation}".strip()


class CoLocationSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`target` co-located with `aggressors` (sorted). `speed` is the target's rate divided by its
    rate alone.

    Rate and speed are medians of `runs` runs."""

    target: str
    aggressors: tuple[str, ...]
    gpu_model: str
    isolation: str
    rate_per_s: float | None
    speed: float
    runs: int = 1

    @property
    def key(self) -> tuple[str, tuple[str, ...], str, str]:
        """The entry's identity: a dataset has at most one entry with this key."""
        return self.target, self.aggressors, self.gpu_model, self.isolation

    @property
    def place(self) -> str:
        """The entry's name in error messages."""
        beside = ", ".join(self.aggressors)
        return f"{self.target} beside {beside} on {self.gpu_model} {self.isolation}".strip()


class Infeasible(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Applications that did not run together (or one that did not run alone): which one failed, and
    why."""

    applications: tuple[str, ...]
    gpu_model: str
    isolation: str
    failed: str
    reason: str
    text: str = ""

    @property
    def key(self) -> tuple[tuple[str, ...], str, str]:
        """The entry's identity: a dataset has at most one entry with this key."""
        return self.applications, self.gpu_model, self.isolation


class Dataset(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename={"api_version": "apiVersion"},
):
    """All measurements of one file; `about` describes where they were taken."""

    api_version: str = msgspec.field(default="")
    kind: str = msgspec.field(default="")
    about: dict[str, str] = {}
    solo: tuple[SoloProfile, ...] = ()
    corun: tuple[CoLocationSample, ...] = ()
    infeasible: tuple[Infeasible, ...] = ()

    def merged(self, other: "Dataset") -> "Dataset":
        """Return the entries of both datasets; if both have an entry with the same key, that of
        `other` is kept."""
        solo, corun = _later(self.solo, other.solo), _later(self.corun, other.corun)
        infeasible = _later(self.infeasible, other.infeasible)
        return Dataset(API_VERSION, KIND, self.about | other.about, solo, corun, infeasible)


EMPTY = Dataset(API_VERSION, KIND)


def about_application(dataset: Dataset, application: str) -> Dataset:
    """Return the entries that involve this application."""
    solo = tuple(profile for profile in dataset.solo if profile.application == application)
    corun = tuple(run for run in dataset.corun if application in (run.target, *run.aggressors))
    infeasible = tuple(entry for entry in dataset.infeasible if application in entry.applications)
    return Dataset(API_VERSION, KIND, dataset.about, solo, corun, infeasible)


def measured(dataset: Dataset, source: str) -> Measurements:
    """Convert to training data for predictors: features as `name.mean` and `name.p95`, speeds,
    failures.

    Only sets that ran out of memory together become forbidden: a crash for another reason says
    nothing about co-location."""
    solos = []
    for profile in dataset.solo:
        known: dict[str, float] = {}
        for name, feature in profile.features.items():
            known |= {f"{name}.mean": feature.mean, f"{name}.p95": feature.p95}
        rate_per_s = math.nan if profile.rate_per_s is None else profile.rate_per_s
        solos.append(records.solo(*profile.key, rate_per_s, known))
    runs = tuple(CoLocatedRun(*sample.key, sample.speed, sample.runs) for sample in dataset.corun)
    forbidden = tuple(
        entry.key
        for entry in dataset.infeasible
        if len(entry.applications) > 1 and entry.reason == OUT_OF_MEMORY
    )
    return Measurements(source, tuple(solos), runs, forbidden)


def encode(dataset: Dataset) -> bytes:
    """Encode as indented JSON, entries in a fixed order."""
    whole = EMPTY.merged(dataset)
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


def decode(body: bytes, where: str) -> Dataset:
    """Decode a dataset; `where` names it in errors. Raises `BadInputError` with the field and the
    fault."""
    try:
        document = msgspec.json.decode(body.removeprefix(codecs.BOM_UTF8))
        dataset = msgspec.convert(with_todays_names(document, FORMER_NAMES), Dataset)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(where, f"is not an interference dataset: {error}") from error
    if (dataset.api_version, dataset.kind) != (API_VERSION, KIND):
        form = f"{dataset.api_version or '-'}/{dataset.kind or '-'}"
        expected = f"this Weft reads apiVersion {API_VERSION}, kind {KIND}"
        raise BadInputError(where, f"is {form}; {expected}")
    for number, solo in enumerate(dataset.solo):
        _sensible(_solo_says(solo), f"{where}, solo[{number}] ({solo.place})")
    for number, run in enumerate(dataset.corun):
        _sensible(_corun_says(run), f"{where}, corun[{number}] ({run.place})")
    known: set[tuple[str, str, str]] = set()
    for number, solo in enumerate(dataset.solo):
        if solo.key in known:
            at = f"{where}, solo[{number}] ({solo.place})"
            raise BadInputError(at, "is listed twice; keep one")
        known.add(solo.key)
    return dataset


def _sensible(wrong: Iterable[tuple[str, str]], where: str) -> None:
    for field, fault in wrong:
        raise BadInputError(f"{where}, field {field}", fault)


def _solo_says(profile: SoloProfile) -> Iterable[tuple[str, str]]:
    """Yield each field with an invalid value, and what is wrong with it."""
    if not profile.application:
        yield "application", "is empty; name it"
    if profile.rate_per_s is not None and profile.rate_per_s < 0:
        yield (
            "rate_per_s",
            f"{profile.rate_per_s!r} is not a rate; leave it out if iterations were not counted",
        )
    for field in ("memory_mib", "peak_mib", "runs", "seconds"):
        if getattr(profile, field) < 0:
            yield field, f"{getattr(profile, field)!r} is below 0"
    for name, feature in profile.features.items():
        for statistic in ("mean", "p95"):
            value = getattr(feature, statistic)
            if abs(value) >= BLANK:
                yield (
                    f"features.{name}.{statistic}",
                    f"{value!r} is DCGM's value for a missing reading; leave it out",
                )
            if name.endswith("_ratio") and not -_ROUNDED <= value <= 1 + _ROUNDED:
                share = f"write {value / 100:g} for {value:g} %, and " if value > 0 else ""
                wrong = f"{value!r} is not between 0 and 1; {share}leave out what was not measured"
                yield f"features.{name}.{statistic}", wrong


def _corun_says(sample: CoLocationSample) -> Iterable[tuple[str, str]]:
    if not sample.target:
        yield "target", "is empty; name it"
    if not sample.aggressors:
        yield "aggressors", "is empty; an application alone belongs in solo"
    if not all(sample.aggressors):
        yield "aggressors", "the name of an aggressor is empty; name it"
    if sample.rate_per_s is not None and sample.rate_per_s < 0:
        yield (
            "rate_per_s",
            f"{sample.rate_per_s!r} is not a rate; leave it out if iterations were not counted",
        )
    if not 0 <= sample.speed <= FASTEST:
        share = f"; write {sample.speed / 100:g} for {sample.speed:g} %" if sample.speed > 0 else ""
        wrong = f"{sample.speed!r} is not a rate divided by the rate alone (1 for no loss){share}"
        yield "speed", wrong
    if sample.runs < 1:
        yield "runs", f"{sample.runs!r} is below 1; write the number of runs"


Entry = TypeVar("Entry", bound=SoloProfile | CoLocationSample | Infeasible)


def _later(first: Iterable[Entry], then: Iterable[Entry]) -> tuple[Entry, ...]:
    last: dict[Any, Entry] = {entry.key: entry for entry in (*first, *then)}
    return tuple(last[key] for key in sorted(last))
