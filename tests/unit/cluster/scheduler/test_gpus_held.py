"""How many GPUs each namespace holds: the larger part of each card, MIG instances as part of it."""

from weft.cluster.scheduler.ledger_gauges import gpus_held
from weft.core.ledger import Ledger
from weft.model import Gpu, Node, Placement, Share


def test_each_cards_larger_part_counts() -> None:
    cards = tuple(Gpu(index, 40_000) for index in range(3))
    instances = (Gpu(3, 10_000, parent=2), Gpu(4, 5_000, parent=2))
    ledger = Ledger([Node("n", (*cards, *instances))])
    held = {
        "a": (Share(0, 0, 10_000, 100),),  # a quarter, by memory
        "b": (Share(0, 0, 4_000, 500),),  # a half, by cores
        "c": (Share(0, 1, 40_000, 1_000),),
        "d": (Share(0, 3, 10_000, 1_000),),  # a quarter of its card
        "e": (),
    }
    for uid, shares in held.items():
        ledger.adopt(Placement(uid, "n", shares))
    ledger.adopt(Placement("f", "gone", (Share(0, 0, 1, 1),)))
    namespaces = {"a": "team", "b": "team", "c": "other", "d": "other", "e": "none", "f": "none"}
    assert gpus_held(ledger, namespaces.__getitem__) == {"team": 0.75, "other": 1.25}
    ledger.release("c")
    assert gpus_held(ledger, namespaces.__getitem__) == {"team": 0.75, "other": 0.25}
