"""Filters the places of a pod by matching waiting pods to places, for policies that read `pending`.
The waiting pods change with every event, so this filter is not cached: it is applied last, each
time, and only to nodes that fit."""

from collections.abc import Iterable, Sequence

import numpy as np

from weft.core.engine.assessment import Assessment
from weft.core.engine.queue import Queue
from weft.core.framework import NEVER, Policy, Profile, Query
from weft.core.framework import policy as ask
from weft.core.ledger.table import Ints, LedgerTable
from weft.model import Code, PodRequest, Shape

ROWS = 64
"""Only this many of the best nodes that fit are considered, plus two for each waiting pod."""


def pending(
    queue: Queue, profile: Profile, pod: PodRequest, shape: Shape, beside: Iterable[PodRequest]
) -> list[Shape]:
    """Return the shapes of the profile's waiting pods in their order, including this pod's
    (`shape`). `beside` are pods that wait outside the queue; a pod in both counts once.
    """
    by_uid = {
        waiting.pod.uid: (waiting.key[:-1], waiting.key[-1], waiting.shape)
        for waiting in queue.waiting()
        if waiting.profile is profile and not waiting.faults
    }
    for index, other in enumerate([*beside, pod]):
        if other.uid not in by_uid:
            by_uid[other.uid] = (ask.queue_key(profile.lead, other), index, other.shape)
    by_uid[pod.uid] = (*by_uid[pod.uid][:2], shape)
    return [entry[2] for entry in sorted(by_uid.values(), key=lambda entry: entry[:2])]


def among(
    table: LedgerTable, known: Assessment, profile: Profile, waiting: Sequence[Shape]
) -> Assessment:
    """Return the answers without the places that the profile's first policy leaves to other waiting
    pods."""
    every = (known.codes == 0).nonzero()[0]
    if not known.demand.needs or known.demand.mode == "many" or not len(every):
        return known
    if not profile.lead.contested(known.total.take(every), len(waiting)):
        return known
    rows = _best(known.total, every, ROWS + 2 * len(waiting))
    query = known.query(table, rows)
    for policy in profile.device_filters:
        mask = ask.filter_devices(policy, query)
        if mask is not None:
            query.narrow(mask)
    devices = ask.filter_pending(profile.lead, query, waiting)
    if devices is None:
        return known
    query.narrow(devices)
    fitting = rows[query.count(query.device_fits) >= known.demand.need.count]
    lost = np.setdiff1d(every, fitting, assume_unique=True)
    narrowed = known.copied()
    narrowed.codes, narrowed.total = known.codes.copy(), known.total.copy()
    narrowed.codes[lost], narrowed.total[lost] = Code.POLICY, NEVER
    narrowed.counts = [*known.counts]
    narrowed.counts[0] -= len(lost)
    narrowed.counts[Code.POLICY] += len(lost)
    if known.position is not None:
        _choose_again(narrowed, query, rows, profile)
    return narrowed


def _best(total: Ints, rows: Ints, most: int) -> Ints:
    """Return the best `most` of these rows, in ascending order of rows; among equals the first."""
    if len(rows) <= most:
        return rows
    scores = total.take(rows)
    least = np.partition(scores, len(rows) - most)[len(rows) - most]
    better, equal = rows[scores > least], rows[scores == least]
    return np.sort(np.concatenate([better, equal[: most - len(better)]]))


def _choose_again(narrowed: Assessment, query: Query, rows: Ints, profile: Profile) -> None:
    """Choose the best remaining device of each node, and update the scores if a single policy
    scores."""
    scorer: Policy | None = profile.device_scorer
    assert scorer is not None
    scores = ask.score_devices(scorer, query)
    if scores is None or narrowed.position is None:
        return
    best, position = query.best(scores, last=scorer.ties == "last")
    narrowed.position = narrowed.position.copy()
    narrowed.position[rows] = position
    if len(profile.scorers) == 1:
        nodes = ask.score_nodes(scorer, query)
        total = best if nodes is None else best + nodes
        narrowed.total[rows] = np.where(best == NEVER, NEVER, total)
