"""The supervisor's process, which replaces that of `weft agent --supervised`."""

import argparse
import asyncio
import contextlib
import logging
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from weft.kube.log_lines import TEXT_FORM, JsonFormatter
from weft.model import WeftError
from weft.node.nri.plugin import NriPlugin
from weft.node.supervisor.delivery_lock import DeliveryLock, HandedOver
from weft.node.supervisor.fork_server import ForkServer
from weft.node.supervisor.supervisor import GUARD_OPTIONS, ShareGuard, Supervisor

log = logging.getLogger("weft.agent")


def main(arguments: Sequence[str]) -> int:
    """Run the supervisor; return the exit code."""
    parser = argparse.ArgumentParser(prog="weft.node.supervisor", description=__doc__)
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument(
        "--guard", type=Path, help="the NRI socket; without --guard no container is refused"
    )
    parser.add_argument("--log", default="info")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--node", default="")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    handler = logging.StreamHandler()
    json = options.log_format == "json"
    handler.setFormatter(JsonFormatter(options.node) if json else logging.Formatter(TEXT_FORM))
    logging.basicConfig(level=options.log.upper(), handlers=[handler])
    try:
        return asyncio.run(_supervise(options.command, options.lock, options.guard))
    except (OSError, WeftError) as error:
        log.critical("%s", error)
        return 1


async def _supervise(command: Sequence[str], file: Path, guard_at: Path | None) -> int:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    handed = HandedOver(secrets.token_hex(16), DeliveryLock.at(file))
    lock = handed.lock
    server = ForkServer(command, handed.environment(), (lock.fd,))
    guarding = None
    if guard_at is not None:
        guard = ShareGuard(handed.mark, lock.take)
        guarding = asyncio.create_task(NriPlugin(guard_at, guard, GUARD_OPTIONS).run())
    try:
        return await Supervisor(server.start).run(stop)
    finally:
        await server.close()
        if guarding is not None:
            guarding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await guarding


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
