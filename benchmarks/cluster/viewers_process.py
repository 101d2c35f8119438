"""Browsers without a screen: each reads a console's pictures as they come, for as long as it runs.

    python viewers_process.py URL COUNT

Says `viewing` once each of them has a whole picture.
"""

import asyncio
import sys

import aiohttp


async def view(url: str, seen: asyncio.Semaphore) -> None:
    """One browser."""
    forever = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(timeout=forever, read_bufsize=1 << 24) as session,
        session.get(f"{url}/api/picture") as answer,
    ):
        begun = False
        async for chunk in answer.content.iter_any():
            if not begun and b"\n\n" in chunk:
                begun = True
                seen.release()


async def main(url: str, count: int) -> None:
    seen = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(view(url, seen))
        for _ in range(count):
            await seen.acquire()
        print("viewing", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
