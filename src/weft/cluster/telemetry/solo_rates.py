"""Determines how fast pods run alone on a GPU: from their annotation, or their application's
profile. Does no I/O.

  weft.dev/solo-rate: "12.5"                units per second, on any GPU
  weft.dev/solo-rate: "A100=40, T4=12.5"    by parts of GPU models' names, case ignored

`dialects/slo.py` reads the SLO. An annotation that cannot be read has no effect; the pod runs
nevertheless."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from weft.dialects.application import ApplicationClues
from weft.dialects.slo import by_model, number, on_model
from weft.interference.dataset import TIME_SLICING
from weft.interference.records import SoloRun
from weft.kube.pods import Pod
from weft.model import PodRequest
from weft.model.annotations import SLO_MS, SOLO_RATE

_SM = "sm_active_ratio.mean"


class SoloRate(NamedTuple):
    """Units per second and SM_ACTIVE of a pod alone on its GPU; NaN if unknown.

    `problem` describes a fault of its annotation, "" if there is none."""

    per_s: float = math.nan
    sm_active: float = math.nan
    problem: str = ""


class SoloProfiles:
    """Profiles of applications that run alone, by application and GPU model. If profiles with
    several isolation modes exist, the one with the pod's own mode counts, if there is one.

    `version` counts replacements, after which cached rates are outdated."""

    def __init__(self, solos: Iterable[SoloRun] = ()) -> None:
        self.version = 0
        self._by_name: dict[tuple[str, str], dict[str, SoloRun]] = {}
        self.replace(solos)

    def replace(self, solos: Iterable[SoloRun]) -> None:
        """Replace all profiles by these."""
        self.version += 1
        self._by_name = {}
        for run in solos:
            ways = self._by_name.setdefault((run.application, run.gpu_model), {})
            ways.setdefault(run.isolation, run)

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def of(self, pod: Pod, request: PodRequest | None, gpu_model: str) -> SoloRate:
        """Return the rate of this pod on this GPU model; its own annotation takes precedence."""
        known = self._profile(names_of(pod, request), gpu_model, request)
        per_s = known.rate_per_s if known is not None and known.rate_per_s > 0 else math.nan
        sm = known.features.get(_SM, math.nan) if known is not None else math.nan
        text = (pod.metadata.annotations or {}).get(SOLO_RATE, "")
        if not text:
            return SoloRate(per_s, sm)
        own = solo_rate(text, gpu_model)
        if own is None:
            return SoloRate(
                per_s, sm, f"{SOLO_RATE} {text[:60]!r} is not a rate; write units per second"
            )
        return SoloRate(per_s if math.isnan(own) else own, sm)

    def _profile(
        self, names: Sequence[str], gpu_model: str, request: PodRequest | None
    ) -> SoloRun | None:
        for name in names:
            ways = self._by_name.get((name, gpu_model))
            if ways:
                own = request.shape.isolation if request is not None else ""
                return ways.get(own) or ways.get(TIME_SLICING) or next(iter(ways.values()))
        return None


def names_of(pod: Pod, request: PodRequest | None) -> tuple[str, ...]:
    """Return the names that the pod's application may have in a profile, the most certain first."""
    application = request.shape.application if request is not None else ""
    workload = request.workload if request is not None else ""
    containers = tuple(container.name for container in pod.spec.containers)
    image = next((container.image for container in pod.spec.containers), "")
    clues = (
        ApplicationClues(application),
        ApplicationClues(containers=containers),
        ApplicationClues(workload=workload),
        ApplicationClues(image=image),
    )
    return tuple(dict.fromkeys(name for clue in clues if (name := clue.name())))


def solo_rate(text: str, gpu_model: str) -> float | None:
    """Return the rate on this GPU model; NaN if only other models are named, None if the text is
    not a rate."""
    rates = by_model(text)
    return None if rates is None else on_model(rates, gpu_model)


def slo_ms(pod: Pod) -> float | None:
    """Return the bound of the pod's p99 latency in milliseconds; None if its annotation is missing
    or unreadable."""
    text = (pod.metadata.annotations or {}).get(SLO_MS, "")
    return number(text) if text else None
