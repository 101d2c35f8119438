"""Teams' queues in the configuration: read in the engine's units, and refused where they cannot
work."""

import pytest

from weft.cluster.config.read import decode
from weft.model import BadInputError
from weft.model.queue_rules import NO_QUEUES, MoveRules, QueueAmounts, QueueRules, QueueTerms

HEAD = "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"


def rules(text: str) -> QueueRules:
    return decode((HEAD + text).encode(), "weft.yaml").queues.rules()


def test_they_are_read_in_thousandths() -> None:
    teams = """queues:
  order: fair
  teams:
  - name: a
    weight: 2
    guarantee: {gpus: 1.5}
    limits: {gpus: 8, gpuMemoryMiB: 100, gpuCores: 50, models: {A100: 4}}
  - name: b
"""
    promised = QueueAmounts(gpu_milli=1_500)
    limits = QueueAmounts(8_000, 100, 500, (("A100", 4_000),))
    first = QueueTerms("a", 2, promised, limits)
    assert rules(teams) == QueueRules("fair", (first, QueueTerms("b")))


def test_by_default_nothing_is_said_and_nothing_counts() -> None:
    assert rules("") == NO_QUEUES
    assert not NO_QUEUES.count
    assert not rules("queues: {teams: [{name: a, weight: 3}]}").count
    assert rules("queues: {order: fair, reclaim: true}") == QueueRules("fair", reclaim=True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{reclaim: true}", "queues.reclaim: needs queues.order: fair"),
        ("{order: fifo}", "queues.order: Invalid enum value 'fifo'; write one of"),
        ("{teams: [{name: ''}]}", "queues.teams[0].name: is empty"),
        ("{teams: [{name: a}, {name: a}]}", "queues.teams[1].name: 'a' is taken by an earlier"),
        ("{teams: [{name: a, weight: 0}]}", "queues.teams[0].weight: 0 must be 1 or more"),
        ("{teams: [{name: a, limits: {gpus: -1}}]}", "queues.teams[0].limits.gpus: -1"),
        ("{teams: [{name: a, limits: {gpu: 1}}]}", "did you mean 'gpus'?"),
        ("{teams: [{name: a, limits: {models: {'': 1}}}]}", "limits.models: names a model ''"),
        (
            "{teams: [{name: a, guarantee: {gpus: 3}, limits: {gpus: 2}}]}",
            "queues.teams[0].guarantee.gpus: is more than limits.gpus: queue a could never hold it",
        ),
    ],
)
def test_what_cannot_work_is_told_by_field(text: str, told: str) -> None:
    with pytest.raises(BadInputError) as error:
        rules(f"queues: {text}\n")
    assert told in str(error.value)


def test_moves_are_off_until_asked_and_read_in_nanoseconds() -> None:
    assert decode(HEAD.encode(), "weft.yaml").queue.moves() == MoveRules()
    asked = "queue: {move: true, moveAfterSeconds: 0.5, movesAnHour: 7}\n"
    assert decode((HEAD + asked).encode(), "weft.yaml").queue.moves() == MoveRules(500_000_000, 7)
    for wrong in ("moveAfterSeconds: 0", "movesAnHour: 0", "move: 1"):
        with pytest.raises(BadInputError, match=wrong.partition(":")[0]):
            decode(f"{HEAD}queue: {{{wrong}}}\n".encode(), "weft.yaml")
