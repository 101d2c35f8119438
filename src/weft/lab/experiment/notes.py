"""Notes that a reader of results must know beside the numbers: one sentence each."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from weft.interference.intervals import ENOUGH_FOR_INTERVAL
from weft.lab.simulate.lacking import REMEDIES
from weft.lab.simulate.results import PolicyRun, PolicySummary

MAY_BE_CHANCE = "°"
"""Stands behind what may be chance."""
LACKS_INPUTS = "*"
"""Stands behind a policy that was not given all it decides by."""
FEW_SEEDS = (
    f"{MAY_BE_CHANCE} fewer than {ENOUGH_FOR_INTERVAL} seeds: no intervals, and differences may be "
    f"chance; --seeds {ENOUGH_FOR_INTERVAL} or more gives them"
)
ONE_DAY = (
    f"{MAY_BE_CHANCE} a recorded day came once: no intervals, and differences may be chance; other "
    "days' records say more"
)
ONE_STATE = (
    f"{MAY_BE_CHANCE} a cluster's state is one: no intervals, and differences may be chance; other "
    "moments' snapshots say more"
)
REPLAYED = "Arrivals are the trace's own."
RESAMPLED = (
    "Arrivals are resampled for each seed: the trace's arrival times, at each a pod of the trace "
    "drawn at random, with replacement."
)


def notes_on(
    runs: Sequence[PolicyRun], summary: Sequence[PolicySummary], *, once: str = ""
) -> list[str]:
    """Notes on the whole, in the order in which they are shown; `once` says why there are no other
    seeds."""
    few = any(policy.seeds < ENOUGH_FOR_INTERVAL for policy in summary)
    lacks = {policy.policy: policy.lacks for policy in summary}
    marked = [f"{LACKS_INPUTS} {note}" for note in lacking_notes(lacks)]
    broken = Counter[str]()
    for run in runs:
        broken[run.policy] += run.side_faults
    faults = [_faulty(name, count) for name, count in broken.items() if count]
    return [*faults, *marked, *_alike(runs, summary), *([once or FEW_SEEDS] if few else [])]


def _faulty(policy: str, count: int) -> str:
    return (
        f"{policy}: {count} times something beside deciding broke off and was left out (the log "
        "says what): its figures are not the policy's"
    )


def lacking_notes(lacks: Mapping[str, Sequence[str]]) -> list[str]:
    """Which policies (by name) ran without which input, and how it may be had."""
    inputs = dict.fromkeys(lack for missing in lacks.values() for lack in missing)
    return [
        f"without {lack}: {', '.join(name for name in lacks if lack in lacks[name])}"
        + (f" ({REMEDIES[lack]})" if lack in REMEDIES else "")
        for lack in inputs
    ]


def _alike(runs: Sequence[PolicyRun], summary: Sequence[PolicySummary]) -> list[str]:
    """Policies that did the same in every run: where inputs lack, that is no finding."""
    groups: dict[bytes, list[str]] = {}
    for policy in summary:
        bare = [
            msgspec.structs.replace(run, policy="", cpu_s=None, wall_s=None)
            for run in runs
            if run.policy == policy.policy
        ]
        groups.setdefault(msgspec.msgpack.encode(bare), []).append(policy.policy)
    return [f"the same in every run: {', '.join(names)}" for names in groups.values() if names[1:]]


def seeds_text(seeds: int) -> str:
    """Number of seeds, marked where they are too few for an interval."""
    return f"{seeds}{MAY_BE_CHANCE if seeds < ENOUGH_FOR_INTERVAL else ''}"


def policy_text(summary: PolicySummary) -> str:
    """Name of a policy, marked where it lacked inputs."""
    return summary.policy + LACKS_INPUTS * bool(summary.lacks)
