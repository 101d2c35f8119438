"""Cells on the workers of a Dask cluster, on this machine or others.

Workers need Weft, the policies and the data under the same paths; they write nothing: what came of
a cell is sent back, and written where the experiment was started.
"""

import platform
import time
from collections.abc import Iterator, Sequence

import msgspec

from weft.lab.experiment.plan import PlannedCell
from weft.lab.experiment.runner import CellResult, Runner
from weft.model import BadInputError
from weft.model.errors import install_extra

CONNECT_S = 30.0


class RemoteCell(msgspec.Struct, frozen=True):
    """The result of a cell, how long it took, and on which host."""

    result: CellResult
    wall_s: float
    host: str


def run_remotely(
    runner: Runner, cells: Sequence[PlannedCell], scheduler: str
) -> Iterator[tuple[PlannedCell, RemoteCell]]:
    """Run the cells on the workers of the Dask scheduler at this address, in the order in which
    they finish. `BadInputError` where Dask is not installed, or nobody answers there."""
    try:
        import distributed
    except ImportError:
        what = f"needs Dask, which is not installed; {install_extra('workers')}"
        raise BadInputError("--workers", what) from None
    try:
        client = distributed.Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        what = f"{scheduler!r} is no Dask scheduler that answers: {error}"
        raise BadInputError("--workers", what) from None
    with client, client.as_current():
        everywhere = client.scatter(runner, broadcast=True, hash=False)
        futures = {client.submit(run_one, everywhere, cell, pure=False): cell for cell in cells}
        for future in distributed.as_completed(futures):
            yield futures[future], future.result()
            future.release()


def run_one(runner: Runner, cell: PlannedCell) -> RemoteCell:
    """Carry out one cell on a worker."""
    began_s = time.perf_counter()
    result = runner.run(cell)
    return RemoteCell(result, time.perf_counter() - began_s, platform.node())
