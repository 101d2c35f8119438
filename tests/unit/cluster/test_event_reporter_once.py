"""A binding is told of by whoever decided it: kube-scheduler writes its own events."""

import asyncio

from live_world import node, pod, until, world

from weft.cluster.control.event_reporter import EventReporter
from weft.core.engine import Bind, BindOn
from weft.kube.bind import Bound


async def test_kube_schedulers_pods_get_no_second_event() -> None:
    async with world(node()) as made:
        teller = EventReporter(made.live, made.client, "here")
        writing = asyncio.create_task(teller.run())
        made.server.add("pods", pod("theirs", scheduler="default-scheduler"))
        found = await until(lambda: made.live.pod("d", "theirs"))
        assert found is not None
        (command,) = made.live.handle(BindOn(made.live.parse_asked(found), "n", "weft"))
        assert isinstance(command, Bind)
        assert isinstance(await made.live.bind(command), Bound)
        made.server.add("pods", pod("ours", memory_mib=100))
        kind = made.server.kind("events")
        await until(lambda: made.server.store.all(kind))
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert [e["regarding"]["name"] for e in made.server.store.all(kind)] == ["ours"]
