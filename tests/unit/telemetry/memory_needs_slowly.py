"""policies.md 7.1 read aloud, one GPU and one sample at a time: what `holds` is compared with."""

import math
from typing import NamedTuple

MISSING, STALE, FRESH = 0, 1, 2
Series = list[float | None]


class Pod(NamedTuple):
    """A pod on the GPU; `age_s` None while it is in flight."""

    asked: int
    age_s: float | None
    series: Series
    lends: bool = True
    warmed: bool = False
    expected: int | None = None
    watched: float = math.inf


class Answer(NamedTuple):
    hold: list[int]
    warm: list[bool]
    need: int
    freshness: int


def peak(values: list[float]) -> float | None:
    ordered = sorted(values)
    return ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)] if ordered else None


def since(pod: Pod, series: Series, ages: list[float]) -> Series:
    """The series, None before the pod was there."""
    there = -1.0 if pod.age_s is None else pod.age_s
    return [v if age <= there else None for v, age in zip(series, ages, strict=True)]


def newest(series: Series) -> float | None:
    return next((v for v in reversed(series) if v is not None), None)


def own_of(pod: Pod, total: int, ages: list[float]) -> Series | None:
    """The pod's own series, if it can be gone by."""
    own = since(pod, pod.series, ages)
    known = [v for v in own if v is not None]
    lately = any(v is not None for v in own[-3:])
    if not lately or max(known) <= 0 or max(known) >= total:
        return None
    return own


def stable_once(series: Series, ages: list[float]) -> bool:
    """Less than 2 % change over some 20 s (of the shortest stretch that covers them)."""
    for end in range(len(ages)):
        begins = [i for i in range(end + 1) if ages[i] >= ages[end] + 20]
        if not begins:
            continue
        stretch = series[max(begins) : end + 1]
        if any(v is None for v in stretch):
            continue
        known = [v for v in stretch if v is not None]
        if max(known) > 0 and max(known) - min(known) < 0.02 * max(known):
            return True
    return False


def slow_holds(
    pods: list[Pod], total: int, used: Series, freshness: int, ages: list[float]
) -> Answer:
    owns = [own_of(pod, total, ages) for pod in pods]
    rest: Series = []
    for at, value in enumerate(used):
        known = [own[at] or 0.0 for own in owns if own is not None]
        rest.append(None if value is None else max(0.0, value - sum(known)))
    warm = []
    for pod in pods:
        anything = any(v is not None for v in pod.series)
        series = since(pod, pod.series if anything else rest, ages)
        old = pod.age_s is not None and pod.age_s >= 60
        warm.append(old and (pod.warmed or stable_once(series, ages)))
    now = newest(used)
    freshness = believed(pods, owns, total, now, freshness)
    if freshness == FRESH and any(
        not is_warm and pod.watched < 120 for pod, is_warm in zip(pods, warm, strict=True)
    ):
        freshness = STALE
    promised = sum(pod.asked for pod in pods)
    if freshness != FRESH or now is None:
        last = math.ceil(now) if now is not None and freshness == STALE else 0
        return Answer([p.asked for p in pods], warm, max(last, promised), freshness)
    parts = pro_rata(pods, owns, warm, rest, ages)
    hold, to_come, settled, unseen = [], 0.0, 0.0, 0.0
    for pod, own, is_warm, its in zip(pods, owns, warm, parts, strict=True):
        part, last = its, newest(own) if own is not None else None
        will = will_need(pod, own)
        if not is_warm:
            hold.append(will)
            if last is not None:
                to_come += max(0, will - last)
            else:
                unseen += will
            continue
        if own is not None and last is not None:
            part = max(peak([v for v in own if v is not None]) or 0.0, last)
        if part is not None and will < pod.asked:
            part = max(part, will)
        if part is None or (not pod.lends and part < pod.asked):
            part = pod.asked
        hold.append(math.ceil(part))
        settled += 0 if own is not None else hold[-1]
    to_come += max(0.0, unseen - max(0.0, (newest(rest) or 0.0) - settled))
    return Answer(hold, warm, max(sum(hold), math.ceil(now + to_come)), freshness)


def will_need(pod: Pod, own: Series | None) -> int:
    """The need of pods like it, where it lends and used no more than they; else its request."""
    if pod.expected is None or not pod.lends:
        return pod.asked
    used = max([v for v in own if v is not None]) if own is not None else 0
    return min(pod.asked, pod.expected) if used <= pod.expected else pod.asked


def believed(
    pods: list[Pod], owns: list[Series | None], total: int, now: float | None, freshness: int
) -> int:
    """MISSING where the used memory contradicts the ledger or the pods' own."""
    if now is None:
        return MISSING if freshness == FRESH else freshness
    old = any(pod.age_s is not None and pod.age_s >= 60 for pod in pods)
    told = sum(newest(own) or 0.0 for own in owns if own is not None)
    if (now <= 0 and old) or now >= total or told > now + 0.02 * total:
        return MISSING
    return freshness


def pro_rata(
    pods: list[Pod], owns: list[Series | None], warm: list[bool], rest: Series, ages: list[float]
) -> list[float | None]:
    """The warm pods' parts of what the GPU used while these, and none that warms up, were there."""
    mine = [is_warm and own is None for is_warm, own in zip(warm, owns, strict=True)]
    if not any(mine):
        return [None] * len(pods)
    youngest = min(p.age_s or 0.0 for p, yes in zip(pods, mine, strict=True) if yes)
    strangers = [
        -1.0 if p.age_s is None else p.age_s
        for p, yes in zip(pods, mine, strict=True)
        if not yes and all(v is None for v in p.series)
    ]
    came = max(strangers, default=-math.inf)
    during = [
        v for v, age in zip(rest, ages, strict=True) if v is not None and came < age <= youngest
    ]
    basis = peak(during)
    last = newest(rest[-1:])
    if not strangers and basis is not None:
        basis = None if last is None else max(basis, last)
    together = sum(p.asked for p, yes in zip(pods, mine, strict=True) if yes)
    return [
        basis * p.asked / together if yes and basis is not None and together else None
        for p, yes in zip(pods, mine, strict=True)
    ]
