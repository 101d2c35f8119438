"""Sentences about overbooked GPUs, pods with doubtful annotations, and evictions."""

from collections.abc import Iterable

from weft.core.engine.overbooking import OverbookedGpu
from weft.model import Gpu, Share

# --- GPUs that hold more than they have ---


def overbooked_in_words(overbooked: Iterable[OverbookedGpu], holders: Iterable[str]) -> str:
    """Name overbooked GPUs, and the pods that hold shares of them (`holders`)."""
    gpus = "; ".join(map(str, overbooked))
    return (
        f"{gpus} ({', '.join(holders)}); Weft places no more pods there while they are overbooked"
    )


def bound_by_others_in_words(node: str, gpus: Iterable[int], assumed: str) -> str:
    """Return the text of the event of a pod that another scheduler bound; `assumed` says how its
    share was guessed, "" if it was not."""
    return (
        f"bound to {node} by another scheduler than Weft: GPU {', '.join(map(str, gpus))} there "
        f"may be overbooked. The pod's share is charged{f' ({assumed})' if assumed else ''} "
        "until the pod ends"
    )


def by_claim_in_words(claim: str) -> str:
    """Return the note on a pod whose GPUs are allocated to a ResourceClaim; `claim` is its name in
    words, such as `claim ml/train`."""
    return f"its GPUs are allocated to {claim}: they are charged to the claim, not to the pod"


# --- shares that Weft did not place ---


def amount_in_words(share: Share, gpu: Gpu | None, *, by_percent: bool) -> str:
    """Format a share of a GPU: `all`, `40 %`, `8,192 MiB and 50 % of its cores`. `by_percent`: show
    memory as a percentage of the GPU's memory, because the pod requested it so."""
    if gpu is not None and share.memory_mib >= gpu.memory_mib:
        if share.milli >= gpu.milli:
            return "all"
        memory = "all its memory"
    elif by_percent and gpu is not None:
        memory = f"{percent_of(share, gpu):g} %"
    else:
        memory = f"{share.memory_mib:,} MiB"
    cores = f"{share.milli / 10:g} % of its cores" if share.milli else ""
    return " and ".join(part for part in (memory if share.memory_mib else "", cores) if part)


def percent_of(share: Share, gpu: Gpu | None) -> float:
    """Return the share's percentage of the GPU's memory; 0 if the GPU is unknown."""
    return round(100 * share.memory_mib / gpu.memory_mib, 1) if gpu and gpu.memory_mib else 0.0


def pod_of_in_words(pod: str, title: str, scheduler: str) -> str:
    """Name another system's pod: `KAI's ml/train`; if `title` is "", by its schedulerName."""
    return f"{title}'s {pod}" if title else f"{pod} (schedulerName {scheduler})"


def held_in_words(amount: str, holder: str, evidence: str, *, is_sure: bool) -> str:
    """Say which GPU share another system's pod or claim holds, and by which evidence; if not
    `is_sure`, that it may hold it."""
    if is_sure:
        return f"{amount} held by {holder}, {evidence}"
    return f"{amount} may be held by {holder}: {evidence}"


# --- marks of bound pods ---


def edited_in_words(edited: str) -> str:
    """Return the text of the event of a pod with annotations that Weft did not write; `edited`
    names the differences."""
    return (
        f"its annotations differ from what Weft wrote, or state less than it requests: {edited}. "
        "The pod is charged the placement that two of Weft's records of it agree on, else the "
        "largest amount on each GPU; no other pod is evicted for it"
    )


def moved_in_words(moved: str) -> str:
    """Return the text of the event of a pod whose annotations name another node or GPU than it runs
    on."""
    return f"{moved}. It is charged where it runs, and no pod is evicted for it"


def changed_in_words(names: Iterable[str]) -> str:
    """Return the text of the event of a pod whose annotations from another system were edited after
    it was bound."""
    return (
        f"{', '.join(names)} changed after it was bound: what they said when it was first seen "
        "counts, and no other pod is evicted for it"
    )


def contradictory_in_words(marks: str) -> str:
    """Return the text of the event of a pod whose annotations from another system cannot be
    true."""
    return f"{marks}. At least what it may hold is charged, and no other pod is evicted for it"


def mistold_in_words(problem: str) -> str:
    """Return the text of the event of a pod about whose devices the node's agent reports something
    impossible; `problem` continues "its node's agent"."""
    return (
        f"its node's agent {problem}: the pod is charged as if nothing had been reported, and no "
        "other pod is evicted for it"
    )


def unreadable_in_words(why: str, charged: str) -> str:
    """Return the text of the event of a bound pod with unreadable annotations; `charged` is the
    amount counted for it."""
    return f"its GPU request or annotations cannot be read ({why}): the pod is charged {charged}"


def undue_in_words(problem: str, *, charged: bool) -> str:
    """Return the text of the event of a pod with a delivery record although it requests no GPU.

    `charged`: the GPUs named in the record are charged to the pod, because its node's agent may
    deliver them; otherwise the agent ignores the record."""
    outcome = (
        "it requests no GPU, but is charged the GPUs in the record, because its node's agent may "
        "deliver them"
        if charged
        else "the node's agent ignores the record and gives the pod no GPU"
    )
    return f"{problem}: {outcome}. Find out who wrote the annotation, and delete the pod"


def lost_in_words(gpus: Iterable[int], node: str) -> str:
    """Return the text of the event of a pod on GPUs that its node no longer reports."""
    return (
        f"was placed on GPU {', '.join(map(str, gpus))} of node {node}, which the node no "
        "longer reports: its share stays reserved there, and is charged to no other GPU"
    )


def past_scheduler_in_words(assumed: str, *, evicts: bool) -> str:
    """Return the text of the event of a pod whose author set `nodeName`; `assumed` says how its
    share was guessed or reported."""
    end = "it is evicted" if evicts else "no other pod is evicted for it"
    return f"was bound without its scheduler, and Weft did not place it: it {assumed}; {end}"


MARKED_LATE = "Weft's annotations were added after it was bound; no other pod is evicted for them"

# --- units of memory on a node ---


def other_unit_in_words(resource: str, counts: str, wanted: str) -> str:
    """Return the text of the event of a node that counts a resource in another unit than
    configured."""
    return (
        f"counts {resource} in {counts}, but gpushareUnit is {wanted}: pods that request it "
        "are refused there, and running ones are charged in the larger unit that its cards can "
        f"hold; write gpushareUnit: auto, or --memory-unit={wanted} for its device plugin"
    )


def switched_unit_in_words(resource: str, counts: str) -> str:
    """Return the text of the event of a node whose unit changed while pods may be running on it."""
    return (
        f"counts {resource} in {counts} now, unlike before: pods there whose annotations "
        f"do not name a unit are charged in {counts}; delete the pods that were placed before"
    )


# --- evictions carried out, or not ---

NOT_LEADING = "this process is not the leader"
NOT_PLACED = "Weft did not place it"
LEASE_ENDS = "the leader's lease ends too soon"
MEMORY_NEEDED = "its memory is needed"
TOO_MANY_REQUESTS = "the API server answered 429"


def evicted_in_words(why: str) -> str:
    """Return the text of the event of a pod that was evicted."""
    return f"evicted: {why}"


def blocked_in_words(why: str, blocked: str, then: str) -> str:
    """Return the text of the event of a pod that the API server currently refuses to evict."""
    return f"{why}. Its eviction is blocked: {blocked}{then}"


TRIED_AGAIN = "; it will be tried again"
