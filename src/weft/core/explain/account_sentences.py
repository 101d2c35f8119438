"""Sentences about what a node's GPUs hold: too much, in doubt, or asked to leave."""

from collections.abc import Iterable

from weft.core.engine.overbooking import OverbookedGpu

# --- GPUs that hold more than they have ---


def overbooked_in_words(overbooked: Iterable[OverbookedGpu], holders: Iterable[str]) -> str:
    """Says what a node's GPUs hold too much of; `holders` are their pods' names."""
    gpus = "; ".join(map(str, overbooked))
    return f"{gpus} ({', '.join(holders)}); nothing more is given away there until that ends"


def bound_by_others_in_words(node: str, gpus: Iterable[int], assumed: str) -> str:
    """The event of a pod that somebody else bound; `assumed` says how its share was guessed."""
    return (
        f"bound to {node} by someone else than Weft: GPU {', '.join(map(str, gpus))} there may "
        f"hold more than it has. Its share is counted{f' ({assumed})' if assumed else ''} and "
        "given to nobody else until it ends"
    )


# --- marks of bound pods ---


def edited_in_words(edited: str) -> str:
    """Marks that are not as Weft wrote them."""
    return (
        f"its marks are not as Weft wrote them, or say less than it asks: {edited}. What two of "
        "them agree on counts, else the larger amount on each GPU; nobody else is evicted for it"
    )


def moved_in_words(moved: str) -> str:
    """Marks that name another place than the pod's."""
    return f"{moved}. It is charged where it is, and nobody is evicted for it"


def unreadable_in_words(why: str, charged: str) -> str:
    """A bound pod whose labels or annotations cannot be read; `charged` is what counts instead."""
    return f"cannot be read as it is now ({why}): it is charged {charged}"


def undue_in_words(problem: str, *, charged: bool) -> str:
    """A delivery record that is not due to its pod."""
    outcome = (
        "it asks for no GPU, and is charged those that the record names: the agent of its node may "
        "be one that gives it these"
        if charged
        else "by it the node's agent gives the pod no GPU"
    )
    return f"{problem}: {outcome}. Look who wrote the annotation, and delete the pod"


def lost_in_words(gpus: Iterable[int], node: str) -> str:
    """GPUs that a pod was placed on and its node does not show any more."""
    return (
        f"was placed on GPU {', '.join(map(str, gpus))} of node {node}, which the node does not "
        "show any more: its share of it is kept for when it is back, and charged to no other GPU"
    )


def past_scheduler_in_words(assumed: str, *, evicts: bool) -> str:
    """A pod that its author bound himself; `assumed` says how its share was guessed."""
    end = "it is evicted" if evicts else "nobody else is evicted for it"
    return f"was bound past its scheduler, without Weft's record: it {assumed}; {end}"


MARKED_LATE = "Weft's marks came to it after it was bound; nobody else is evicted for them"

# --- units of memory on a node ---


def other_unit_in_words(resource: str, counts: str, wanted: str) -> str:
    """A node that counts a resource in another unit than the configuration says."""
    return (
        f"counts {resource} in {counts}, but gpushareUnit is {wanted}: pods that ask for it "
        "are kept off, and those there are charged the larger that its cards can hold; "
        f"write gpushareUnit: auto, or --memory-unit={wanted} for its device plugin"
    )


def switched_unit_in_words(resource: str, counts: str) -> str:
    """A node whose unit was switched while pods may be there."""
    return (
        f"counts {resource} in {counts} now, and did not before: pods there whose marks do "
        f"not say their unit are charged in {counts}; better delete what was placed before"
    )


# --- evictions carried out, or not ---

NOT_LEADING = "this process does not lead"
NOT_PLACED = "Weft did not place it"
LEASE_ENDS = "the lease ends too soon"
MEMORY_NEEDED = "its memory is needed"
TOO_MANY_REQUESTS = "the API server says 429"


def evicted_in_words(why: str) -> str:
    """The event of a pod that was evicted."""
    return f"evicted: {why}"


def blocked_in_words(why: str, blocked: str, then: str) -> str:
    """The event of a pod whose eviction the API server holds up."""
    return f"{why}. It is to be evicted, but: {blocked}{then}"


TRIED_AGAIN = "; tried again"
