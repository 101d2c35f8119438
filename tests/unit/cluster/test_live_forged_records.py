"""A delivery record that is not due to its pod is told, and charged where it may give a GPU."""

import json

import pytest
from live_world import CARD_MIB, World, node, pod, until, world

from weft.model.agent_offer import AgentOffer, encode_offer
from weft.model.annotations import AGENT, DELIVERY, PLACEMENT, PLACEMENT_COPY
from weft.model.delivery import (
    DeliveredCard,
    DeliveredContainer,
    DeliveredShare,
    DeliveryRecord,
    encode_delivery,
)


def used(made: World) -> list[int]:
    return [int(mib) for mib in made.live.engine.ledger.table.memory_used]


def plain(made: World) -> None:
    """A pod on the node that asks for no GPU."""
    containers = [{"name": "main", "resources": {"limits": {"cpu": "1"}}}]
    made.server.add("pods", pod("plain", containers=containers, nodeName="n"))


def forge(made: World, name: str, gpus: int = 1, *, of: str = "") -> None:
    """Write into this pod that it has whole GPUs of its node, as its owner may."""
    cards = tuple(DeliveredCard(i, "", CARD_MIB, 1000, CARD_MIB, 1000) for i in range(gpus))
    shares = tuple(DeliveredShare(i, "", CARD_MIB, 1000) for i in range(gpus))
    uid = of or made.uid(name)
    record = DeliveryRecord(uid, "n", "weft", cards, {"main": DeliveredContainer(shares)})
    rows = [[0, i, CARD_MIB, 1000, ""] for i in range(gpus)]
    placed = json.dumps({"pod": uid, "node": "n", "shares": rows})
    marks = {DELIVERY: encode_delivery(record), PLACEMENT: placed, PLACEMENT_COPY: placed}
    made.server.update("pods", name, {"metadata": {"annotations": marks}}, "d")


@pytest.mark.parametrize("compares", [False, True])
async def test_who_asks_for_nothing_is_told_and_charged_where_an_agent_may_believe_it(
    compares: bool,
) -> None:
    n = node("n", 2)
    offer = AgentOffer("1", "by-name", compares_records=compares)
    n["metadata"].setdefault("annotations", {})[AGENT] = encode_offer(offer)
    async with world(n) as made:
        plain(made)
        forge(made, "plain")
        (text,) = await until(lambda: made.told("DeliveryDoubted"))
        assert "the pod requests no GPU" in text
        assert used(made) == [0 if compares else CARD_MIB, 0]
        assert made.live.pods.unsure(made.uid("plain")), "no other pod is evicted for it"
        made.server.remove("pods", "plain", "d")
        await until(lambda: used(made) == [0, 0])


async def test_a_record_of_another_pod_gives_nothing_and_is_charged_nothing() -> None:
    async with world(node("n", 2)) as made:
        plain(made)
        forge(made, "plain", of="another")
        made.server.add("pods", pod("p", CARD_MIB))
        await until(lambda: sum(used(made)) == CARD_MIB)
        assert not made.told("DeliveryDoubted")
