"""Measurements of applications alone and co-located, as predictors learn from them."""

import math
import re
from collections.abc import Iterable

import msgspec

SLOWEST = 0.01
"""Lower limit of speeds, measured and predicted."""
FASTEST = 2.0
"""Upper limit of measured speeds: a larger one means that the two rates have different units."""

FORMER_NAMES = {"victim": "target", "one": "application"}
"""Fields in files of Weft 0.1.0, and their names today."""

_IN_BRACKETS = re.compile(r"^(?P<family>.*?)\s*\((?:[^()]*?(?P<batch>\d+)[^()]*|[^()]*)\)\s*$")
_AT_END = re.compile(
    r"^(?P<family>.*?)[-_ ](?:(?:bs|batch)[-_ ]?(?P<sized>\d+)|(?P<bare>\d+))$", re.IGNORECASE
)


class SoloRun(msgspec.Struct, frozen=True):
    """An application alone on a GPU model.

    `features` are by metric and statistic (`sm_active_ratio.mean`); unknown ones are absent.
    `rate_per_s` is NaN if not counted. Applications of one `family` are the same program with other
    batch sizes."""

    application: str
    gpu_model: str
    isolation: str = ""
    family: str = ""
    batch: float = math.nan
    rate_per_s: float = math.nan
    features: dict[str, float] = {}


class CoLocatedRun(msgspec.Struct, frozen=True):
    """`target` co-located with `others`. `speed` is the target's rate divided by its rate alone,
    the median of `runs` runs."""

    target: str
    others: tuple[str, ...]
    gpu_model: str
    isolation: str
    speed: float
    runs: int = 1


class Measurements(msgspec.Struct, frozen=True):
    """Measurements of one source; the applications of each `forbidden` entry ran out of memory
    together, or must not share a GPU."""

    source: str
    solos: tuple[SoloRun, ...] = ()
    runs: tuple[CoLocatedRun, ...] = ()
    forbidden: tuple[tuple[tuple[str, ...], str, str], ...] = ()

    def cells(self) -> list[tuple[str, str]]:
        """Return (GPU model, isolation) of all runs, each once: every such cell gets its own
        predictor."""
        return sorted({(run.gpu_model, run.isolation) for run in self.runs})

    def cell(self, gpu_model: str, isolation: str) -> "Measurements":
        """Return the measurements on one GPU model with one isolation.

        Speeds below `SLOWEST` count as `SLOWEST`, since 0 has no logarithm. Applications that were
        only measured with others get a solo run without features."""
        at = (gpu_model, isolation)
        runs = [run for run in self.runs if (run.gpu_model, run.isolation) == at]
        solos = [solo for solo in self.solos if (solo.gpu_model, solo.isolation) == at]
        named = {name for run in runs for name in (run.target, *run.others)}
        missing = sorted(named - {solo.application for solo in solos})
        return Measurements(
            self.source,
            (*solos, *(solo(name, gpu_model, isolation) for name in missing)),
            tuple(msgspec.structs.replace(run, speed=max(run.speed, SLOWEST)) for run in runs),
            tuple(pair for pair in self.forbidden if pair[1:] == at),
        )

    def only(self, runs: Iterable[CoLocatedRun]) -> "Measurements":
        """Return these measurements with `runs` in place of their co-located runs."""
        return Measurements(self.source, self.solos, tuple(runs), self.forbidden)


def family_and_batch(application: str) -> tuple[str, float]:
    """Parse family and batch size from a name: `ResNet-18 (batch size 64)`, `resnet-infer-64`.

    A name without a batch size is a family of its own, with batch size NaN. A number at the end is
    a batch size only after two words or `bs`: `ResNet-18` is a network, and stays whole."""
    inside = _IN_BRACKETS.match(application)
    if inside:
        return inside["family"], float(inside["batch"] or math.nan)
    behind = _AT_END.match(application)
    if behind and (behind["sized"] or re.search(r"[-_ ]", behind["family"])):
        return behind["family"], float(behind["sized"] or behind["bare"])
    return application, math.nan


def solo(
    application: str,
    gpu_model: str,
    isolation: str,
    rate_per_s: float = math.nan,
    features: dict[str, float] | None = None,
) -> SoloRun:
    """Make a `SoloRun` whose family and batch size are parsed from its name; NaN features are left
    out."""
    family, batch = family_and_batch(application)
    known = {name: value for name, value in (features or {}).items() if math.isfinite(value)}
    return SoloRun(application, gpu_model, isolation, family, batch, rate_per_s, known)
