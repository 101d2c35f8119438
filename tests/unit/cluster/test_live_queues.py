"""Teams' queues of pods as the API shows them."""

import logging
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from fakes.api_clock import VirtualClock
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pods import PodView
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import PodAdded, PodSeenBound
from weft.core.ledger import Ledger
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod
from weft.model.queue_rules import NO_QUEUES, QueueRules, QueueTerms

FAIR = QueueRules("fair", (QueueTerms("known"),))


def pod(name: str, queue: str = "", **spec: Any) -> Pod:
    labels = {"weft.dev/queue": queue} if queue else {}
    asks = {"limits": {"weft.dev/gpu-memory": 4000}}
    whole = {
        "metadata": {"name": name, "namespace": "d", "uid": name, "labels": labels},
        "spec": {"schedulerName": "weft", "containers": [{"name": "c", "resources": asks}], **spec},
    }
    return msgspec.convert(whole, Pod)


def view(queues: QueueRules) -> PodView:
    found = PodView(
        ["weft"],
        NodeView(),
        VolumeView(),
        Ledger(()),
        DialectSettings(),
        on_bad=lambda *_: None,
        clock=VirtualClock(),
        queues=queues,
    )
    found.deciding = True
    return found


def test_waiting_and_bound_pods_say_their_queue() -> None:
    pods = view(FAIR)
    added = pods.update(pod("a", "known"))
    assert isinstance(added, PodAdded)
    assert added.pod.team_queue == "known"
    seen = pods.update(pod("a", "known", nodeName="n"))
    assert isinstance(seen, PodSeenBound)
    assert seen.queue == "known"
    moved = pods.update(pod("a", "other", nodeName="n"))
    assert isinstance(moved, PodSeenBound)
    assert moved.queue == "other"
    by_namespace = pods.update(pod("b", nodeName="n"))
    assert isinstance(by_namespace, PodSeenBound)
    assert by_namespace.queue == "d"


def test_where_no_queues_count_bound_pods_say_none() -> None:
    seen = view(NO_QUEUES).update(pod("a", "known", nodeName="n"))
    assert isinstance(seen, PodSeenBound)
    assert seen.queue is UNSET


def test_a_queue_that_nobody_configured_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    pods = view(FAIR)
    with caplog.at_level(logging.WARNING):
        for name, queue in (("a", "typo"), ("b", "typo"), ("c", "known"), ("d", "")):
            pods.update(pod(name, queue))
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "pod d/a names queue typo, which queues.teams does not list: it gets weight 1, no "
        "guarantee and no limits"
    )
