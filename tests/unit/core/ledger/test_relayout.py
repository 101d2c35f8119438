"""A ledger whose nodes join, leave and change equals one that is laid out from them anew."""

from random import Random
from typing import Any

import numpy as np
from long_form import few_or_many
from msgspec.structs import replace

from weft.core.ledger import Ledger, RequestLimits
from weft.core.ledger.table import LedgerTable
from weft.model import ClosedNode, HostPort, Node, Placement, Share, Taint
from weft.model.gpu_links import GpuLinks
from weft.testing import node, placement, random_node

LIMITS = (RequestLimits(), RequestLimits(1500), RequestLimits(1000, 2000))
OWN_WORDS = {"residents", "cells", "device_cells", "changed_at", "closed_at"}
"""Compared otherwise, or views of other columns, or history."""


def some_node(dice: Random) -> Node:
    made = random_node(dice, f"n{dice.randint(0, 5)}")
    if len(made.gpus) == 2 and dice.random() < 0.6:
        path = dice.choice(["NV4", "SYS"])
        made = replace(made, links=GpuLinks((0, 1), (f"X {path}", f"{path} X")))
    if dice.random() < 0.2:
        made = replace(
            made, extended={**made.extended, "rare": 3}, taints=(Taint("a", "NoExecute"),)
        )
    return made


def some_placement(dice: Random) -> Placement:
    shares = [Share(at, dice.randint(0, 3), dice.randint(0, 9_000), 100) for at in range(2)]
    return replace(
        placement(f"p{dice.randint(0, 30)}", f"n{dice.randint(0, 5)}"),
        shares=tuple(shares[: dice.choice([0, 1, 1, 2])]),
        extended=dice.choice([(), (("rare", 1),), (("example.com/licence", 1),)]),
        ports=dice.choice([(), (HostPort(80),)]),
        application=dice.choice(["", "cnn", "rnn"]),
    )


def told(table: LedgerTable) -> dict[str, Any]:
    """Everything that a table says, residents by what they are."""
    found = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in vars(table).items()
        if name not in OWN_WORDS
    }
    found["ports"] = {row: sorted(map(str, ports)) for row, ports in table.ports.items()}
    found["extended"] = {name: column.tolist() for name, column in table.extended.items()}
    found["residents"] = [table.residents.on(device) for device in range(table.devices)]
    members = table.residents.members
    assert [members[n] for n in table.residents.co_residents.tolist()] == found["residents"]
    return found


def anew(ledger: Ledger) -> Ledger:
    fresh = Ledger(ledger.table.nodes, ledger.limits)
    for held in ledger.holdings.values():
        fresh.adopt(held.placement)
    fresh.set_idle({uid: held.idle_mib for uid, held in ledger.holdings.items()})
    fresh.hold_back(ledger.held_back)
    fresh.set_measured(ledger.table.measured)
    return fresh


def something_happens(ledger: Ledger, dice: Random) -> None:
    names = [known.name for known in ledger.table.nodes]
    match dice.choice(["nodes", "nodes", "adopt", "adopt", "release", "idle", "measured", "close"]):
        case "nodes":
            came = {
                made.name: made for made in (some_node(dice) for _ in range(dice.randint(0, 2)))
            }
            left = dice.sample(names, min(len(names), dice.choice([0, 0, 1])))
            ledger.set_nodes(came.values(), left)
        case "adopt":
            ledger.adopt(some_placement(dice))
        case "release":
            ledger.release(f"p{dice.randint(0, 30)}")
        case "idle":
            ledger.set_idle({uid: (dice.randint(0, 5_000),) for uid in ledger.holdings})
            ledger.hold_back({("n1", 0): 100, ("n2", 1): 0})
        case "measured":
            ledger.set_measured(np.array([dice.random() < 0.5] * ledger.table.devices, dtype=bool))
        case "close" if names:
            taints = (Taint("b", "NoSchedule"),)
            ledger.close([ClosedNode(dice.choice(names), taints, dice.random() < 0.5)])


def test_what_is_taken_over_equals_what_is_laid_out_anew():
    layouts = 0
    for seed in range(few_or_many(30, 2_000)):
        dice = Random(seed)
        ledger = Ledger([], dice.choice(LIMITS))
        known: dict[int, tuple[list[Node], int]] = {}
        for _ in range(30):
            something_happens(ledger, dice)
            known.setdefault(ledger.generation, (list(ledger.table.nodes), ledger.version))
            assert told(ledger.table) == told(anew(ledger).table), seed
            for generation, (nodes, version) in known.items():
                rows = ledger.rows_then(generation)
                assert rows is not None or generation < ledger.generation - 10
                check_rows(ledger, rows, nodes, version)
        layouts += ledger.generation
    assert layouts > few_or_many(150, 300)


def check_rows(ledger: Ledger, rows: Any, nodes: list[Node], version: int) -> None:
    """A row is where it was as long as its node is the same; a new one counts as changed."""
    for now, then in enumerate([] if rows is None else rows.tolist()):
        if then >= 0:
            assert nodes[then].name == ledger.table.nodes[now].name
            assert nodes[then].gpus == ledger.table.nodes[now].gpus
        else:
            assert ledger.table.changed_at[now] > version or version == ledger.version


def test_a_node_that_joins_costs_its_own_rows(monkeypatch):
    """Nothing of 200 nodes with pods is derived or charged again."""
    ledger = Ledger([node(f"n{at}", gpus=8) for at in range(200)])
    for at in range(200):
        ledger.adopt(placement(f"p{at}", f"n{at}", 0, memory_mib=1_000))
    derived = 0
    derive = LedgerTable._derive_device

    def counted(self: LedgerTable, device: int) -> None:
        nonlocal derived
        derived += 1
        derive(self, device)

    monkeypatch.setattr(LedgerTable, "_derive_device", counted)
    ledger.set_nodes([node("new", gpus=8)], ["n7"])
    assert 0 < derived <= 16
