"""Kinds of bad input from other systems. Weft reports and counts such input; if a pod's amount is
unclear because of it, the pod is charged the most that the input may mean.

Kinds are the label values of the metric `weft_bad_input` (docs/reference/metrics.md), so their
number is fixed.
"""

from typing import Literal, NamedTuple, get_args

BadInputKind = Literal[
    "pool-incomplete",
    "uuid-twice",
    "device-in-no-slice",
    "device-on-no-card",
    "consumed-beyond-capacity",
    "claim-without-pod",
    "reservation-without-group",
    "reservation-on-dead-node",
    "mark-unreadable",
    "mark-names-unknown-card",
    "device-object-missing",
    "amounts-contradict",
    "rights-missing",
]
KINDS: tuple[BadInputKind, ...] = get_args(BadInputKind)


class WrongMark(NamedTuple):
    """A fault in another system's annotation on a bound pod, and a sentence about it."""

    kind: BadInputKind
    text: str
