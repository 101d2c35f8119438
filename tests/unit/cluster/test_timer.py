"""The engine asks to be woken; event loops may do that a little early by the clock it goes by."""

import asyncio

from led_cluster import led

from weft.core.engine import Command, Event, Tick, Wake
from weft.core.framework import Profile
from weft.core.policies.fgd import Fgd
from weft.kube.client import ApiClient, Endpoint, FixedCredentials
from weft.kube.clock import SystemClock


class SlowClock(SystemClock):
    """Runs at half the event loop's speed: every timer goes off early."""

    def monotonic(self) -> float:
        return super().monotonic() / 2


class Waiting:
    """Stands in for the engine: wants to be woken at one time, and counts the calls until then."""

    def __init__(self, at_ns: int) -> None:
        self.at_ns, self.calls = at_ns, 0
        self.woken = asyncio.Event()

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        self.calls += 1
        if now_ns >= self.at_ns:
            self.woken.set()
            return []
        return [Wake(self.at_ns)]


async def test_a_timer_that_goes_off_early_is_set_again() -> None:
    clock = SlowClock()
    client = ApiClient(Endpoint("http://127.0.0.1:1", FixedCredentials()), clock=clock)
    live = led(client, [Profile("weft", [Fgd()])]).live
    engine = Waiting(int((clock.monotonic() + 0.05) * 1e9))
    live.decide = engine.handle
    live.handle(Tick())
    await asyncio.wait_for(engine.woken.wait(), 60)
    assert engine.calls > 2
