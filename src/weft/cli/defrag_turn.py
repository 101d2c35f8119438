"""Lets one `weft defrag apply` at a time move pods on a cluster."""

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from weft.cli.cluster_question import answer

if TYPE_CHECKING:
    from weft.cluster.eviction.moving_turn import MovingTurn

_ENDS_WITHIN_S = 10.0


@contextmanager
def moving_turn(kubeconfig: Path | None, context: str) -> "Iterator[MovingTurn]":
    """The turn, held on a thread while pods are moved on this one; given back at the end.

    Raises `BadInputError` where the cluster does not answer, or this user may not have leases.
    """
    from weft.cluster.eviction.moving_turn import MovingTurn

    turn = MovingTurn(f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}")
    failed: list[Exception] = []

    def hold() -> None:
        try:
            answer(kubeconfig, context, turn.hold)
        except Exception as error:  # told on the other thread
            failed.append(error)
        finally:
            turn.settled.set()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    turn.settled.wait()
    try:
        if failed:
            raise failed[0]
        yield turn
    finally:
        turn.end()
        thread.join(_ENDS_WITHIN_S)
