"""The agent's pages: health that a kubelet understands, metrics, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from weft.cluster.http.metric_families import gauge
from weft.host.agent import AgentPages
from weft.model import BadInputError


class _One(Collector):
    def collect(self) -> list[Metric]:
        return [gauge("weft_agent_one", "One.", 1)]


@asynccontextmanager
async def serving(pages: AgentPages) -> AsyncIterator[str]:
    run = asyncio.create_task(pages.run())
    await pages.listening.wait()
    try:
        yield f"http://127.0.0.1:{pages.port}"
    finally:
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run


async def test_ready_once_every_part_is_well() -> None:
    wrong = {"runtime": "not registered yet"}
    checks = {"devices": lambda: "", "runtime": lambda: wrong["runtime"]}
    pages = AgentPages([_One()], checks, address="127.0.0.1", port=0)
    async with serving(pages) as url, aiohttp.ClientSession(url) as client:

        async def get(path: str) -> tuple[int, str]:
            async with client.get(path) as answer:
                return answer.status, await answer.text()

        assert await get("/livez") == (200, "ok")
        status, text = await get("/readyz")
        assert status == 503
        assert text == (
            "[+]devices ok\n[-]runtime failed: not registered yet\nreadyz check failed\n"
        )
        wrong["runtime"] = ""
        assert await get("/readyz") == (200, "ok")
        assert (await get("/readyz?verbose"))[1].endswith("readyz check passed\n")
        status, text = await get("/metrics")
        assert (status, text.splitlines()[-1]) == (200, "weft_agent_one 1.0")
        assert (await get("/elsewhere"))[0] == 404
        async with client.post("/metrics", data=b"x") as answer:
            assert answer.status == 405


async def test_a_port_that_is_taken_is_named() -> None:
    pages = AgentPages([], {}, address="127.0.0.1", port=0)
    async with serving(pages):
        second = AgentPages([], {}, address="127.0.0.1", port=pages.port)
        with pytest.raises(BadInputError, match=rf"127\.0\.0\.1:{pages.port}: can't be listened"):
            await second.run()
