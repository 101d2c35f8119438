"""Sentences for users: in `weft explain`, events, conditions and the extender's answers."""

from collections.abc import Callable, Iterable, Sequence

from msgspec import UNSET

from weft.core.constraints import PreferredPlace
from weft.core.engine.events import EvictionWaived
from weft.core.engine.harvest import Eviction, Harvest
from weft.core.engine.oom_history import ALONE_AFTER, OomCharge
from weft.core.engine.overbooking import DoubleBooking, Excuse
from weft.core.engine.reasons import FeasibilitySummary
from weft.core.engine.records import GangDecision, MoveCost, PreemptedFor, Record
from weft.core.engine.slowdown_eviction import WINDOWS, SlowdownReason
from weft.core.explain.amounts import age_in_words, gpus_in_words, shares_in_words
from weft.core.explain.explanation import StuckPod
from weft.core.framework.connection import ChosenLinks
from weft.model import Code, PodRequest, Reason, Share

BOUNDED = "not every placement of its GPU shares was tried: another may be better"

_STUCK_SHOWN = 3

# --- the extender's answers ---

NOT_READY = "Weft is still reading the cluster; ask again"
NO_LEASE = "this Weft process's lease would expire before the binding is written; ask again"
UNKNOWN_NODE = "node is not known to Weft yet"
UNANSWERED = "the API server did not answer; Weft is checking whether the pod is bound"
CHANGED = "the pod changed during the decision"

# --- a pod's state ---

_STATES = {
    "bad": "contradicts itself and waits until it is changed: {}",
    "ended": "has ended ({}) and holds nothing",
    "deleted": "is being deleted and was never bound",
    "gated": "has scheduling gates: {}",
    "unsupported": "waits: {}",
    "not ours": "waits for the scheduler {}, which is not one of Weft's profiles",
    "bound": "is bound on {}",
    "binding": "is being bound on {}",
    # States only in decisions files:
    "placed": "placed on {}",
    "leaving": "to be evicted from {}",
    **dict.fromkeys(("pending", "faulted"), "{}"),
}
NOWHERE = "fits nowhere"
RECLAIMS = "reclaims its guarantee"
ROOM_NOW = "has room now and waits for its next attempt"
GANG_WAITS = "waits for its group: a pod alone would fit, but not as many as the group needs"
FOLLOWS = "this process is not the leader; the leader decides"


def state_in_words(state: str, why: str = "") -> str:
    """Return the main sentence of an explanation; `why` is inserted, such as the place."""
    return _STATES[state].format(why)


def place_in_words(node: str, shares: Sequence[Share], without: str = "") -> str:
    """Format a node and the pod's shares of its GPUs; `without` is appended if there are no
    shares."""
    return node + (f", {shares_in_words(shares)}" if shares else without)


def chosen_in_words(record: Record, policies: Iterable[str]) -> str:
    """Return a sentence with the profile that chose a place, its policies, and the score."""
    how = f"profile {record.profile} ({', '.join(policies)}) chose it"
    return f"{how}, score {record.score}, attempt {record.attempt}"


def bound_by_in_words(scheduler_name: str, ours: bool) -> str:
    """Say who bound a pod that this process did not place."""
    if ours:
        return "Weft bound it before this process became leader"
    return f"{scheduler_name} bound it, or its author set nodeName"


# --- notes on a pod's state ---


def node_gone_in_words(node: str) -> str:
    """Return the note on a pod whose node is gone."""
    return f"node {node} is gone: the pod's GPUs are not charged until it is back"


def served_in_words(scheduler_names: Iterable[str]) -> str:
    """Return the note on another scheduler's pod that lists the scheduler names that Weft
    serves."""
    return f"schedulerNames that Weft serves here: {', '.join(scheduler_names) or 'none'}"


def extender_in_words(summary: FeasibilitySummary | None, refusal: str = "") -> str:
    """Return the note on another scheduler's pod with the answer that Weft would give as
    kube-scheduler's extender."""
    if summary is None:
        return f"as an extender Weft would refuse it: {refusal}"
    return f"as an extender Weft would answer: {summary}"


NO_PREEMPTION = "its profile does not preempt"


def preemption_in_words(names: Iterable[str], priority: int, way_out: str) -> str:
    """Return the note on a pod that preemption would help, but whose profile does not preempt."""
    return (
        f"{NO_PREEMPTION}: ending {', '.join(names)}, of lower priority than this "
        f"pod's {priority}, would make room. End it yourself, or {way_out}"
    )


def preempted_in_words(why: PreemptedFor) -> str:
    """Say for which pod a pod is preempted or moved."""
    text = f"{'moved for' if why.moves_to else 'preempted by'} {why.pod}"
    if why.queue:
        text += f": queue {why.queue} {RECLAIMS}"
    else:
        text += f" (priority {why.pod_priority}; this pod has {why.priority})"
    if why.moves_to:
        return f"{text}; there is room for it on node {why.moves_to}"
    return f"{text}, with all pods of group {why.gang}" if why.gang else text


def kept_in_words(node: str, leaving: Iterable[str]) -> str:
    """Say which node is kept for a pod, and which pods must still end there."""
    names = sorted(leaving)
    if not names:
        return f"node {node} is kept for it"
    shown = ", ".join(names[:_STUCK_SHOWN]) + (", …" if len(names) > _STUCK_SHOWN else "")
    pods = "1 pod" if len(names) == 1 else f"{len(names)} pods"
    return f"node {node} is kept for it, which waits for {pods} to end: {shown}"


def kept_for_it_in_words(nodes: Sequence[str]) -> str:
    """Say on which nodes room is kept for the pod."""
    return f"room is kept for it on {_first(nodes)}"


def kept_for_in_words(group: str, asks: str, nodes: Sequence[str], starts: str = "") -> str:
    """Return the note on a pod that would fit if a place were not kept for a waiting group or pod
    that goes first."""
    then = f" and {starts}" if starts else ""
    return f"would fit on {_first(nodes)}, kept for {group}, which waits for {asks}{then}"


def starts_in_words(left_ns: int) -> str:
    """Say in how many minutes the waiting pod is expected to start."""
    minutes = max(1, -(-left_ns // 60_000_000_000))
    return f"starts there in {minutes:,} min if nothing ends later than expected"


def beyond_advertised_in_words(lacks: Reason, left: int, advertised: int, node: str) -> str:
    """Return the note on a GPU resource of which the node advertises less than Weft could lend."""
    return (
        f"{lacks.unit}: {lacks.asked:,} asked, {max(0, left):,} left of {advertised:,} that a "
        f"device plugin advertises on {node}. The kubelet admits no pod beyond that, so memory is "
        "lent only within it"
    )


# --- events and conditions ---


def bound_in_words(node: str, shares: Sequence[Share]) -> str:
    """Return the text of the event of a binding."""
    gpus = ", ".join(str(share.gpu) for share in shares)
    return f"bound to {node} GPU {gpus}" if gpus else f"bound to {node}"


def pending_in_words(summary: FeasibilitySummary, unsupported: str, stuck: str) -> str:
    """Return the text of the event and the PodScheduled condition of a pending pod."""
    if unsupported:
        return f"{summary} ({unsupported})"
    return f"{summary}; {stuck}" if stuck else str(summary)


def stuck_in_words(stuck: Iterable[StuckPod]) -> str:
    """List GPUs held by stuck pods: `2 GPUs held by pods of dead nodes: d/a for 3 h`; "" if there
    are none."""
    texts = []
    every = list(stuck)
    for dead, of in ((True, "pods of dead nodes"), (False, "pods long past their deletion")):
        pods = [pod for pod in every if pod.dead_node is dead]
        if not pods:
            continue
        gpus = sum(pod.gpus for pod in pods)
        names = [f"{pod.namespace}/{pod.name}{_since(pod.age_s)}" for pod in pods[:_STUCK_SHOWN]]
        if len(pods) > _STUCK_SHOWN:
            names.append(f"{len(pods) - _STUCK_SHOWN} more")
        texts.append(f"{gpus_in_words(gpus)} held by {of}: {', '.join(names)}")
    return "; ".join(texts)


def _since(age_s: float | None) -> str:
    return "" if age_s is None else f" for {age_in_words(age_s)}"


def closed_in_words(cordoned: Sequence[str], not_ready: Sequence[str]) -> str:
    """Name nodes that take no pods, with the kubectl command for each kind; "" if there are
    none."""
    texts = []
    if cordoned:
        texts.append(
            f"cordoned: {_first(cordoned)}; kubectl uncordon {cordoned[0]} admits pods again"
        )
    if not_ready:
        texts.append(
            f"not ready: {_first(not_ready)}; kubectl describe node {not_ready[0]} says why"
        )
    return "; ".join(texts)


def _first(names: Sequence[str]) -> str:
    more = len(names) - _STUCK_SHOWN
    return ", ".join(names[:_STUCK_SHOWN]) + (f" and {more} more" if more > 0 else "")


def gang_in_words(gang: GangDecision) -> str:
    """Say how many of the pods that the group needs exist, or have places."""
    if not gang.least:
        return f"the size of group {gang.name} is not known, so its pods wait"
    in_vain = ""
    if gang.most is not UNSET:
        in_vain = f"; the cluster has room for {gang.most:,} at most, were it empty"
    if gang.there < gang.least:
        text = f"group {gang.name} needs {gang.least:,} pods, but has {gang.there:,}"
        return text + in_vain
    needs = f"group {gang.name} needs places for {gang.least:,} pods together"
    if gang.kept is not UNSET:
        in_vain += f"; {kept_for_it_in_words(gang.kept)}"
    if gang.found < gang.least:
        return f"{needs}, and {gang.found:,} have or would have places{in_vain}"
    return f"{needs}, and has {gang.found:,}"


def gang_refused_in_words(record: Record, gang: GangDecision, pod: PodRequest) -> str:
    """Return the text of the event and the PodScheduled condition of a pod of a waiting group.
    Warnings on the pod may say why its group has too few pods, or no known size."""
    text, unsupported = gang_in_words(gang), pod.shape.constraints.unsupported
    if unsupported:
        text += f"; {unsupported}"
    if gang.there < gang.least or not gang.least:
        about = f" of group {gang.name} "
        notes = (note for note in pod.warnings if about in note or not gang.least)
        return "; ".join((text, *notes))
    reasons = [Reason(Code(code), n) for code, n in enumerate(record.counts) if code and n]
    reasons.sort(key=lambda reason: -reason.nodes)
    return f"{text}; the next of its pods fits none of {sum(record.counts):,} nodes: " + ", ".join(
        map(str, reasons)
    )


def moves_in_words(cost: MoveCost) -> str:
    """Say how much work is lost by moving pods, and how long the pod for which they move has
    waited."""
    return (
        f"pods are moved for it: {cost.lost_gpu_s:,.0f} GPU s of work are repeated, and it has "
        f"waited for {cost.waited_gpu_s:,.0f} GPU s"
    )


# --- what a decision rests on ---


def decision_notes(record: Record, name: Callable[[str], str] = str) -> list[str]:
    """Return further facts from a decision's record; `name` turns a UID into a pod's name."""
    notes = [harvest_in_words(harvest, name) for harvest in record.harvested]
    notes += [eviction_in_words(record.eviction, name)] if record.eviction else []
    notes += [slowed_in_words(record.slowed, name)] if record.slowed else []
    notes += [preempted_in_words(record.preempted)] if record.preempted else []
    if record.preempts:
        leaving = (*record.preempts.victims, *record.preempts.leaving)
        notes.append(kept_in_words(record.preempts.node, map(name, leaving)))
        notes += [moves_in_words(cost)] if (cost := record.preempts.moves) else []
    if isinstance(record.double_booked, DoubleBooking):
        notes.append(double_booking_in_words(record.double_booked, record.node, name))
    notes += [BOUNDED] if record.bounded else []
    notes += [] if record.links is UNSET else [links_in_words(record.links)]
    notes += [] if record.preferred is UNSET else [preferred_in_words(record.preferred)]
    notes += [] if record.gang is UNSET else [gang_in_words(record.gang)]
    return notes + ([charged_in_words(record.charged)] if record.charged else [])


_PREFERRED = {
    "taints": "few PreferNoSchedule taints",
    "node-affinity": "node affinity",
    "spread": "spread",
    "pod-affinity": "affinity to pods",
    "images": "images on the node",
}


def preferred_in_words(preferred: PreferredPlace) -> str:
    """Say by how many points the pod's preferences favoured the node, and among how many nodes."""
    parts = [f"{_PREFERRED[p.name]} +{p.points} of {p.most}" for p in preferred.parts]
    return (
        f"preferred: {', '.join(parts)}; among {preferred.nodes:,} nodes that the policies rate "
        f"within {preferred.percent} % of the best"
    )


def links_in_words(links: ChosenLinks) -> str:
    """Say how the pod's GPUs are connected, and which better connection was not chosen or
    available."""
    had = (
        f"GPUs {_listed(links.gpus)} have {links.path} as their weakest link, between GPUs "
        f"{_listed(links.between)}: {links.gbps:g} GB/s"
    )
    numa = f", over {links.numa_nodes} NUMA nodes" if links.numa_nodes > 1 else ""
    if not links.best_gpus:
        return f"{had}{numa}; no {len(links.gpus)} GPUs of the node are connected better"
    better = f"{links.best_path} of GPUs {_listed(links.best_gpus)} ({links.best_gbps:g} GB/s)"
    if not links.taken:
        return f"{had}{numa}; {better} was not chosen: those GPUs score less"
    taken = f"GPU {links.taken[0]} is" if len(links.taken) == 1 else f"{_listed(links.taken)} are"
    return f"{had}{numa}; {better} was not free: {taken} taken"


def _listed(gpus: Iterable[int]) -> str:
    *some, last = map(str, gpus)
    return f"{', '.join(some)} and {last}" if some else last


def harvest_in_words(harvest: Harvest, name: Callable[[str], str] = str) -> str:
    """Say how much memory was borrowed from which pods; `name` turns a UID into a pod's name."""
    lenders = ", ".join(
        f"{name(lender.uid)} (idle {lender.idle_mib:,} MiB)" for lender in harvest.lenders
    )
    lenders = lenders or "unknown pods"
    text = f"harvested {harvest.harvested_mib:,} MiB of GPU {harvest.gpu}: of {lenders}"
    if harvest.expected_mib:
        text += (
            f"; room for {harvest.expected_mib:,} MiB, the learnt peak of {harvest.like}, instead "
            f"of the {harvest.asked_mib:,} asked"
        )
    return text


def eviction_in_words(eviction: Eviction, name: Callable[[str], str] = str) -> str:
    """Return the reason for a borrower's eviction, in numbers."""
    grew = ", ".join(
        f"{name(g.uid)} grew from {g.before_mib:,} to {g.now_mib:,} MiB" for g in eviction.grew
    )
    return (
        f"the pods of GPU {eviction.gpu} need {eviction.need_mib:,} MiB of its "
        f"{eviction.card_mib:,}, of which {eviction.reserve_mib:,} stay free"
        f"{f'; {grew}' if grew else ''}; it had borrowed {eviction.borrowed_mib:,} MiB, "
        "so it is evicted first"
    )


def slowed_in_words(slowed: SlowdownReason, name: Callable[[str], str] = str) -> str:
    """Return the reason for a slowdown eviction, in numbers; `name` turns a UID into a pod's
    name."""
    pod = name(slowed.slow_pod)
    if slowed.rule == "together":
        return (
            f"the pods of GPU {slowed.gpu} together progress at {slowed.together:.2f} times the "
            "rate of one pod alone; of those that may be evicted, this pod was bound last"
        )
    measured = (
        "was late for its SLO"
        if slowed.rule == "late"
        else (f"was {slowed.slowdown:.2f} times slower than alone (allowed: {slowed.bound:.2f})")
    )
    hope = (
        f"without this pod it is expected to be {slowed.speedup:.2f} times faster"
        if slowed.speedup >= 1.005
        else "of the pods that share its GPU only this one may be evicted; its effect is not "
        "predicted"
    )
    looks = f"{slowed.windows} of the last {WINDOWS} windows"
    return f"{pod} on GPU {slowed.gpu} {measured} in {looks}; {hope}"


def double_booking_in_words(
    conflict: DoubleBooking, node: str, name: Callable[[str], str] = str
) -> str:
    """Return the reason for evicting a pod of a double-booked GPU, in numbers; `name` turns a UID
    into a pod's name."""
    lacking = []
    if conflict.lacks_mib:
        lacking.append(f"{conflict.lacks_mib:,} of its {conflict.card_mib:,} MiB are missing")
    if conflict.lacks_milli:
        lacking.append(
            f"{conflict.lacks_milli:,} of its {conflict.card_milli:,} thousandths are missing"
        )
    lacks = " and ".join(lacking) or "a card and a MIG instance of it cannot both be in use"
    beside = ", ".join(map(name, conflict.beside))
    twice = f"GPU {conflict.gpu} of node {node} was booked twice"
    return f"{twice}; with {beside}, bound before, {lacks}"


_EXCUSES: dict[Excuse, str] = {
    "shrunk-node": "its node has reported larger or more GPUs than now",
    "larger-card": "its node must have had larger GPUs when it was placed",
    "undated": "it is not recorded when it was bound",
    "long-ago": "it was bound {} minutes ago, and has been left running since",
}


def waived_in_words(waived: EvictionWaived, name: Callable[[str], str] = str) -> str:
    """Return the reason why a double-booked pod is not evicted."""
    text = double_booking_in_words(waived.why, waived.placement.node, name)
    excuse = _EXCUSES[waived.excuse].format(waived.held_ns // (60 * 1_000_000_000))
    return f"{text}. It is not evicted: {excuse}"


def charged_in_words(charge: OomCharge) -> str:
    """Say how much more a pod is charged after its workload ran out of GPU memory, and why."""
    if charge.times >= ALONE_AFTER:
        return (
            f"charged GPUs of its own, of {charge.least_mib:,} MiB or more: {charge.workload} ran "
            f"out of GPU memory {charge.times} times or more"
        )
    return (
        f"charged {charge.least_mib:,} MiB of a GPU or more, and it never borrows: 1.25 × what "
        f"{charge.workload} had or used when it ran out of GPU memory"
    )
