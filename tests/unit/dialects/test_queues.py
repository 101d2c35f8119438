"""Which team's queue a pod belongs to, in each system's words."""

from typing import Any

import pytest
from manifests import pod

from weft.dialects.queues import named_queue, queue_of


@pytest.mark.parametrize(
    ("said", "queue"),
    [
        ({"labels": {"weft.dev/queue": "a"}}, "a"),
        ({"labels": {"kueue.x-k8s.io/queue-name": "a"}}, "a"),
        ({"labels": {"kueue.x-k8s.io/local-queue-name": "a"}}, "a"),
        ({"labels": {"volcano.sh/queue-name": "a"}}, "a"),
        ({"annotations": {"volcano.sh/queue-name": "a"}}, "a"),
        ({"annotations": {"scheduling.volcano.sh/queue-name": "a"}}, "a"),
        ({"labels": {"kai.scheduler/queue": "a"}}, "a"),
        ({"labels": {"kai.scheduler/queue": "b", "weft.dev/queue": "a"}}, "a"),
        ({"labels": {"weft.dev/queue": "", "kai.scheduler/queue": "b"}}, "b"),
        ({"annotations": {"volcano.sh/queue-name": "x\ny"}}, ""),
        ({"annotations": {"volcano.sh/queue-name": "x" * 10_000}}, ""),
        ({"labels": {"app": "a"}}, ""),
        ({}, ""),
    ],
)
def test_the_first_word_that_is_a_name_counts(said: dict[str, Any], queue: str) -> None:
    asked = pod(**said)
    assert named_queue(asked) == queue
    assert queue_of(asked) == (queue or asked.metadata.namespace)
