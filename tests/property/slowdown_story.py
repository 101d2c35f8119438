"""Random pods on shared GPUs, random looks at them, and the rule of who goes, read slowly.

`Reference` keeps a log of everything and works out anew at each look what the rule says. It is slow
and has no state but the log.
"""

import math
from collections import Counter
from typing import NamedTuple

from long_form import AUDITED_EVERY

from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Event,
    Evict,
    NotEvicted,
    PodAdded,
    PodBound,
    PodGone,
    PodProgress,
    ProgressSeen,
    Record,
    SlowdownReason,
)
from weft.core.framework import Policy, Profile
from weft.core.framework.policy import SlowdownTolerance
from weft.core.ledger import audit
from weft.core.record import records_of
from weft.testing import node, pod

S = 1_000_000_000
NODES = tuple(node(name, gpus=2, model="V100") for name in ("a", "b"))
CLASSES = ("latency-critical", "batch", "best-effort", "")
BOUND, FIVE_MINUTES, MINUTE, ONE_LOOK = 1.10, 300 * S, 60 * S, 10 * S
HOUR = 3600 * S

_Seen = tuple[float | None, bool]


def costs(_: str, victim: str, other: str) -> float:
    """Some number for each pair, often the same."""
    return (len(victim) * 7 + len(other) * 3) % 5 / 8


class Tolerant(Policy):
    """The tightest GPU, and a bound."""

    name = "tolerant"

    @property
    def tolerance(self) -> SlowdownTolerance:
        return SlowdownTolerance(BOUND, costs)


class Look(NamedTuple):
    """The pods at one look, and what was seen of them: (slowdown or None, late) by UID.

    `touched` are GPUs of pods of which that counts.
    """

    at_ns: int
    co_residents: dict[str, tuple[str, ...]]
    seen: dict[str, tuple[float | None, bool]]
    touched: frozenset[str] = frozenset()


class Eviction(NamedTuple):
    """A pod that was asked to go, on account of these GPUs; for this victim."""

    at_ns: int
    uid: str
    gpus: tuple[str, ...]
    own: tuple[str, ...]
    victim: str = ""
    rule: str = ""


class Left(NamedTuple):
    """Somebody went for a pod's sake, and was asked to at this time."""

    asked_ns: int
    victim: str


def slow_in(windows: list[_Seen]) -> int:
    return sum(1 for slowdown, _ in windows if slowdown is not None and slowdown > BOUND)


def bad_in(windows: list[_Seen]) -> int:
    """Windows too slow, or late ones, whichever are more."""
    return max(slow_in(windows), sum(1 for _, late in windows if late))


class Reference:
    """The rule, out of the log."""

    def __init__(self) -> None:
        self.pods: dict[str, tuple[str, tuple[str, ...]]] = {}  # class and GPUs, in their order
        self.log: list[Look] = []
        self.evictions: list[Eviction] = []
        self.refused: dict[str, int] = {}
        self.left: list[Left] = []
        self.withheld_evictions: dict[str, str] = {}

    def on(self, gpu: str) -> list[str]:
        return [uid for uid, (_, gpus) in self.pods.items() if gpu in gpus]

    def co_residents(self, uid: str) -> tuple[str, ...]:
        gpus = self.pods[uid][1]
        return (*gpus, "|", *sorted({other for gpu in gpus for other in self.on(gpu)}))

    def windows(self, uid: str, most: int = 1 << 30) -> list[_Seen]:
        return self.windows_beside(uid, self.co_residents(uid), len(self.log), most)

    def windows_beside(
        self, uid: str, co_residents: tuple[str, ...], looks: int, most: int = 1 << 30
    ) -> list[_Seen]:
        """At most so many beside these, without a gap, but for the first; newest first."""
        found: list[_Seen] = []
        newer_ns = self.log[looks - 1].at_ns
        for look in reversed(self.log[:looks]):
            if newer_ns - look.at_ns > MINUTE or len(found) > most:
                break
            if uid in look.seen:
                if look.co_residents[uid] != co_residents:
                    break
                found.append(look.seen[uid])
                newer_ns = look.at_ns
        return found[:-1]

    def seen_last(self, uid: str) -> list[_Seen]:
        """Its windows as they were when it was seen last."""
        for number in range(len(self.log), 0, -1):
            look = self.log[number - 1]
            if self.log[-1].at_ns - look.at_ns > MINUTE:
                break
            if uid in look.seen:
                return self.windows_beside(uid, look.co_residents[uid], number, 3)
        return []

    def alone(self, victim: str) -> bool:
        """Tells whether it was as bad alone, since it was last in order."""
        alone = late = False
        for number, look in enumerate(self.log, 1):
            if victim not in look.seen:
                continue
            co_residents = look.co_residents[victim]
            windows = self.windows_beside(victim, co_residents, number, 3)
            if self.pods[victim][0] != "latency-critical":
                windows = [(slowdown, False) for slowdown, _ in windows]
            if windows and not bad_in(windows[:1]) and (windows[0][0] is not None or late):
                alone = late = False
            elif bad_in(windows[:2]) == 2 and co_residents[co_residents.index("|") :] == (
                "|",
                victim,
            ):
                alone, late = True, slow_in(windows[:2]) < 2
        return alone

    def doubt(self, uid: str, now_ns: int) -> str:
        if self.alone(uid):
            return "alone"
        lately = [one for one in self.left if one.victim == uid and now_ns - one.asked_ns < HOUR]
        return "in-vain" if len(lately) >= 3 else ""

    def why_not(self, now_ns: int) -> str:
        """The reason against letting anybody go at all."""
        critical = [uid for uid, (told, _) in self.pods.items() if told == "latency-critical"]
        watched = [windows for windows in map(self.seen_last, critical) if windows]
        slow = sum(1 for one in watched if bad_in(one[:1]) or bad_in(one) >= 2)
        if slow >= 3 and slow / len(watched) > 1 / 3:
            return "common"
        return "enough" if any(now_ns - e.at_ns < ONE_LOOK for e in self.evictions) else ""

    def quiet(self, gpu: str, now_ns: int) -> bool:
        return any(gpu in e.gpus and now_ns - e.at_ns < FIVE_MINUTES for e in self.evictions)

    def leaving(self, gpu: str) -> bool:
        return any(e.uid in self.pods and gpu in self.pods[e.uid][1] for e in self.evictions)

    def may_go(self, uid: str, now_ns: int) -> bool:
        job_class, gpus = self.pods[uid]
        lately = now_ns - self.refused.get(uid, -FIVE_MINUTES) < FIVE_MINUTES
        busy = any(self.quiet(gpu, now_ns) or self.leaving(gpu) for gpu in gpus)
        return job_class != "latency-critical" and not lately and not busy

    def look(self, now_ns: int, observed: tuple[PodProgress, ...]) -> list[str]:
        """Takes one look; returns who goes."""
        seen = {
            one.uid: (None if one.proxy else one.slowdown, one.late)
            for one in observed
            if one.uid in self.pods
        }
        self.log.append(Look(now_ns, {uid: self.co_residents(uid) for uid in seen}, seen))
        touched = [gpu for uid in seen if self.windows(uid) for gpu in self.pods[uid][1]]
        self.log[-1] = self.log[-1]._replace(touched=frozenset(touched))
        self.withheld_evictions, before = {}, len(self.evictions)
        for uid in seen:
            if self.windows(uid) and self.pods[uid][0] == "latency-critical":
                self.for_critical(uid, now_ns)
        for gpu in dict.fromkeys(touched):
            self.of_slow(gpu, now_ns)
        return [one.uid for one in self.evictions[before:]]

    def for_critical(self, uid: str, now_ns: int) -> None:
        windows = self.windows(uid)[:3]
        gpus = self.pods[uid][1]
        if bad_in(windows) < 2 or not bad_in(windows[:1]) or any(map(self.leaving, gpus)):
            return
        newest = next((slowdown for slowdown, _ in windows if slowdown is not None), 1.0)
        best: tuple[tuple[object, ...], str] | None = None
        for gpu in gpus:
            for number, other in enumerate(self.on(gpu)):
                slowdown_eviction = costs("", uid, other)
                clear = math.exp(slowdown_eviction) > max(newest / BOUND, BOUND) * (1 + 1e-12)
                if other == uid or not self.may_go(other, now_ns):
                    continue
                if len(self.pods[other][1]) > 1 and not clear:
                    continue
                last = self.pods[other][0] != "best-effort"
                rank = (other in self.refused, -slowdown_eviction, last, -number)
                if best is None or rank < best[0]:
                    best = (rank, other)
        if best is not None:
            rule = "bound" if slow_in(windows) >= 2 else "late"
            self.evict(best[1], now_ns, gpus, uid, rule, [uid])

    def of_slow(self, gpu: str, now_ns: int) -> None:
        there = self.on(gpu)
        if len(there) < 2 or any(self.pods[uid][0] == "latency-critical" for uid in there):
            return
        since_ns = newer_ns = now_ns
        for number, look in enumerate(reversed(self.log)):
            if gpu in look.touched:
                if newer_ns - look.at_ns > MINUTE or not self.is_slow(there, number):
                    break
                since_ns = newer_ns = look.at_ns
        if not self.is_slow(there, 0) or now_ns - since_ns < FIVE_MINUTES:
            return
        able = [
            uid for uid in there[::-1] if len(self.pods[uid][1]) == 1 and self.may_go(uid, now_ns)
        ]
        able = [u for u in able if u not in self.refused] + [u for u in able if u in self.refused]
        if able and not self.leaving(gpu):
            residency = [uid for uid in there if uid != able[0]]
            victim = max(residency, key=lambda uid: self.windows(uid, 1)[0][0] or 1.0)
            self.evict(able[0], now_ns, (), victim, "together", [victim, *sorted(there)])

    def is_slow(self, there: list[str], number: int) -> bool:
        """Tells whether these were slow together as they were last counted, so many looks ago."""
        log, self.log = self.log, self.log[: len(self.log) - number]
        try:
            windows = [self.windows(uid, 1) for uid in there]
            if not all(windows):
                return False
            slowdowns = [one[0][0] for one in windows]
            return None not in slowdowns and sum(1 / (one or 1.0) for one in slowdowns) < 1.0
        finally:
            self.log = log

    def evict(
        self,
        uid: str,
        now_ns: int,
        gpus: tuple[str, ...],
        victim: str,
        rule: str,
        co_residents: list[str],
    ) -> None:
        own = self.pods[uid][1]
        doubted = [one for one in co_residents if self.doubt(one, now_ns)]
        whose = doubted[0] if doubted else victim
        why = self.doubt(whose, now_ns) or self.why_not(now_ns)
        if why:
            self.withheld_evictions[whose] = why
            return
        self.evictions.append(Eviction(now_ns, uid, tuple({*own, *gpus}), own, victim, rule))

    def residencies(self, uid: str, now_ns: int, refused: bool) -> None:
        self.evictions = [one for one in self.evictions if one.uid != uid]
        if refused:
            self.refused[uid] = now_ns

    def gone(self, uid: str) -> None:
        self.left += [Left(one.at_ns, one.victim) for one in self.evictions if one.uid == uid]
        self.pods.pop(uid, None)
        self.refused.pop(uid, None)


class World:
    """An engine and the reference, told the same."""

    def __init__(self) -> None:
        self.engine = Engine([Profile("weft", [Tolerant()])], NODES)
        self.reference = Reference()
        self.now_ns = self.number = 0
        self.events: list[tuple[int, Event]] = []
        self.records: list[list[Record]] = []
        self.classes: dict[str, str] = {}
        self.asked: list[str] = []
        self.why_not: Counter[str] = Counter()

    @property
    def slowed(self) -> list[SlowdownReason]:
        """Why pods were asked to go."""
        return [one.slowed for told in self.records for one in told if one.slowed is not None]

    def tell(self, event: Event) -> list[Command]:
        self.events.append((self.now_ns, event))
        commands = self.engine.handle(event, self.now_ns)
        if len(self.events) % AUDITED_EVERY == 0:
            assert audit(self.engine.ledger) == []
        self.records.append(records_of(commands))
        return commands

    def add(self, job_class: str, gpus: int, mib: int) -> None:
        """A pod comes, and is bound if it fits."""
        self.number += 1
        uid = "p" * (self.number % 4) + str(self.number)
        asks = pod(uid, gpus=gpus, memory_mib=mib, job_class=job_class, application=uid)
        for command in self.tell(PodAdded(asks)):
            if isinstance(command, Bind):
                self.bound(command)
        if uid not in self.reference.pods:
            self.tell(PodGone(uid))

    def bound(self, command: Bind) -> None:
        uid, place = command.pod.uid, command.placement
        self.tell(PodBound(uid))
        self.classes[uid] = command.pod.shape.job_class
        gpus = tuple(dict.fromkeys(f"{place.node}{share.gpu}" for share in place.shares))
        self.reference.pods[uid] = (command.pod.shape.job_class, gpus)

    def gone(self, number: int) -> None:
        pods = list(self.reference.pods)
        if pods:
            uid = pods[number % len(pods)]
            self.reference.gone(uid)
            self.tell(PodGone(uid))

    def answer(self, number: int, how: str) -> None:
        """One that was asked to go goes, or not."""
        asked = [one.uid for one in self.reference.evictions if one.uid in self.reference.pods]
        if not asked:
            return
        uid = asked[number % len(asked)]
        if how == "goes":
            self.reference.gone(uid)
            self.tell(PodGone(uid))
        else:
            refused = how == "refused"
            self.reference.residencies(uid, self.now_ns, refused)
            self.tell(NotEvicted(uid, refused=refused))

    def look(self, after_s: int, told: list[tuple[float, bool, bool] | None]) -> None:
        """Slowdown, proxy and late of each pod, None where nothing was seen."""
        self.now_ns += after_s * S
        pods = list(self.reference.pods)
        seen = [(uid, told[at % len(told)]) for at, uid in enumerate(pods)]
        observed = tuple(PodProgress(uid, *one) for uid, one in seen if one is not None)
        expected = self.reference.look(self.now_ns, observed)
        commands = self.tell(ProgressSeen(observed))
        found = [c.placement.uid for c in commands if isinstance(c, Evict)]
        assert found == expected
        withheld, engine_withheld = (
            self.reference.withheld_evictions,
            self.engine.slowdown_eviction.withheld_evictions,
        )
        seen_now = {one.uid for one in observed}
        assert {u: w for u, w in engine_withheld.items() if u in seen_now} == {
            u: w for u, w in withheld.items() if u in seen_now
        }
        self.why_not.update(withheld.values())
        self.asked += found
