"""Borrowed memory that its holder needs again: the borrower is evicted through the API."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from live_world import World, api, bind, living, node, pod, until

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from fakes.harvesting import Harvesting
from weft.core.engine import SignalsChanged
from weft.core.engine.harvest import NEED
from weft.core.framework.signals import FRESH, snapshot
from weft.core.ledger import RequestLimits
from weft.kube.client import ApiClient


class Lent(World):
    """A cluster with one card, on which a lender's idle memory is lent."""

    def __init__(self, server: FakeApiServer, client: ApiClient) -> None:
        super().__init__(server, client, Harvesting(), limits=RequestLimits(harvest_permille=1_500))
        self.version = 0

    def look(self, **idle: int) -> None:
        """A snapshot in which these pods leave so much idle."""
        self.version += 1
        ages = np.full(1, FRESH, dtype=np.int8)
        told = {self.uid(name): (mib,) for name, mib in idle.items()}
        columns = {NEED: (np.zeros(1), ages)}
        self.live.handle(
            SignalsChanged(snapshot(self.version, 0, [("n", 0)], columns, idle_mib=told))
        )

    async def bound(self, name: str) -> None:
        """Wait until the watch shows the pod bound."""
        await until(lambda: (p := self.live.pod("d", name)) and p.spec.node_name)


@asynccontextmanager
async def lent(*, lead: bool = True) -> AsyncIterator[Lent]:
    """The lender needs 3,000 of its 15,000 MiB; the borrower asked for 6,000."""
    async with api(node(count=1)) as server, client_of(server) as client:
        made = Lent(server, client)
        async with living(made, lead=lead):
            if lead:
                server.add("pods", pod("lender", 15_000))
                await made.bound("lender")
                made.look(lender=12_000)
                server.add("pods", pod("borrower", 6_000))
                await made.bound("borrower")
            yield made


async def test_the_borrower_is_evicted_with_the_reason_in_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with lent() as made:
        record = made.live.engine.placed[made.uid("borrower")].record
        assert [one.harvested_mib for one in record.harvested] == [5_000]
        made.look(lender=9_000)
        assert not made.deleting("borrower")  # 12,000 of 15,488 MiB
        made.look(lender=5_000)
        await until(lambda: made.deleting("borrower"))
        (text,) = await until(lambda: made.told("BorrowedMemoryNeeded"))
        assert text == (
            "evicted: the pods of GPU 0 need 16,000 MiB of its 16,000, of which 512 stay free; "
            "d/lender grew from 6,000 to 10,000 MiB; it had borrowed 5,000 MiB, so it "
            "is evicted first"
        )
        (line,) = (
            line
            for line in caplog.records
            if line.getMessage() == f"evicted d/borrower: {text[9:]}"
        )
        assert (line.__dict__["pod"], line.__dict__["node"]) == ("d/borrower", "n")
        assert line.__dict__["cycle"] > record.seq
        assert not made.deleting("lender")
        made.look(lender=4_000)
        assert made.parts.evictor.borrower_counts == {"evicted": 1, "blocked": 0, "failed": 0}
        made.server.remove("pods", "borrower", "d")
        await until(lambda: len(made.live.engine.ledger.holdings) == 1)


async def test_a_disruption_budget_is_asked_again_at_the_next_look() -> None:
    async with lent() as made:
        made.server.fault("status", path="eviction", code=429, times=1_000)
        made.look(lender=0)
        await until(lambda: made.told("EvictionBlocked"))
        await until(lambda: made.parts.evictor.borrower_counts["blocked"] == 1)
        made.server.faults.forget()
        assert not made.deleting("borrower")
        made.look(lender=12_000)  # needed no more
        assert not made.deleting("borrower")
        made.look(lender=0)
        await until(lambda: made.deleting("borrower"))
        assert not made.deleting("lender")


@pytest.mark.parametrize("code", [500, 409])
async def test_an_eviction_that_fails_or_meets_others_writes_is_asked_again_at_the_next_look(
    code: int,
) -> None:
    async with lent() as made:
        made.server.fault("status", path="eviction", code=code, times=1_000)
        made.look(lender=0)
        await until(lambda: made.parts.evictor.borrower_counts["failed"] == 1)
        made.server.faults.forget()
        made.look(lender=0)
        await until(lambda: made.deleting("borrower"))


async def test_who_follows_evicts_nobody_and_knows_after_a_restart_who_borrowed() -> None:
    async with lent(lead=False) as made:
        for name, mib in (("lender", 15_000), ("borrower", 6_000)):
            made.server.add("pods", pod(name, mib))
        bind(made.server, "borrower", 0, "2026-01-01T00:00:09Z", memory_mib=6_000)
        bind(made.server, "lender", 0, "2026-01-01T00:00:01Z", memory_mib=15_000)
        await until(lambda: len(made.live.engine.ledger.holdings) == 2)
        made.look(lender=0)
        await until(lambda: not made.parts.evictor._tasks)
        assert "POST pods/eviction" not in made.server.requests
        await made.live.lead(afresh=False)
        made.look(lender=0)
        await until(lambda: made.deleting("borrower"))
        assert not made.deleting("lender")


async def test_a_pod_that_weft_did_not_place_is_never_evicted() -> None:
    async with lent() as made:
        made.server.add("pods", pod("foreign", 1_000, scheduler="other"))
        bind(made.server, "foreign", None, "2099-01-01T00:00:00Z")
        await until(lambda: len(made.live.engine.ledger.holdings) == 3)
        made.look(lender=0)
        await until(lambda: not made.parts.evictor._tasks)
        made.look(lender=0)
        await until(lambda: made.deleting("borrower"))
        assert not made.deleting("foreign")
