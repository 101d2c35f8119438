"""`weft console`: shows a cluster in a browser, from a snapshot or a simulated one."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option, echo

from weft.cli.snapshot_files import SnapshotFile
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.console.sources import PictureSource

LOOPBACK = "127.0.0.1"
DEMO_POLICY = "least-stranding"


def console(
    snapshot: SnapshotFile = None,
    demo: Annotated[
        bool, Option("--demo", help="A simulated cluster of 200 GPUs that lives in real time.")
    ] = False,
    port: Annotated[
        int, Option(min=0, max=65535, help="The port to listen on; 0: any free one.")
    ] = 8470,
    address: Annotated[
        str, Option(help="The address to listen on; whoever reaches it sees everything.")
    ] = LOOPBACK,
) -> None:
    """Show in a browser who holds which GPU, which pods wait and why.

    Prints the address to open, and serves it until Ctrl-C. Shows, and changes nothing.
    """
    if (snapshot is None) is not demo:
        raise BadInputError("--snapshot", "names what to show: give it, or --demo, one of them")
    source = _demo() if snapshot is None else _snapshot(snapshot)
    asyncio.run(_serve(source, address, port))


def _demo() -> "PictureSource":
    from time import time_ns

    from weft.console.sources import LivingSource
    from weft.core.policies.catalog import built_in
    from weft.lab.simulate.living import LivingCluster

    policy = built_in().create(DEMO_POLICY)
    return LivingSource(LivingCluster(policy, time_ns()), f"simulated, policy {DEMO_POLICY}")


def _snapshot(path: Path) -> "PictureSource":
    from weft.cli.snapshot_files import open_snapshot
    from weft.console.sources import SnapshotSource

    return SnapshotSource(open_snapshot(path), path.name)


async def _serve(source: "PictureSource", address: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    from weft.console.server import ConsoleServer
    from weft.host.shell import stop_signal

    stop, server = stop_signal(), ConsoleServer(source)
    try:
        opened = await server.listen(address, port)
    except OSError as error:
        wrong = f"cannot be listened on: {error.strerror or error}; give another --port"
        raise BadInputError(f"{address}:{port}", wrong) from error
    host = f"[{address}]" if ":" in address else address
    echo(f"weft: the console is at http://{host}:{opened} (Ctrl-C ends it)")
    lives, ended = asyncio.create_task(server.run()), asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait((lives, ended), return_when=asyncio.FIRST_COMPLETED)
    lives.cancel()
    ended.cancel()
    await server.close()
    if lives in done:
        await lives  # raises what ended it
