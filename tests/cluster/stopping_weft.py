"""`weft scheduler` that stops itself (SIGSTOP) between asking for leave to bind and the send.

The weak spot of every lease: the check is true when it is made, and the process is held up right
after it. Nothing else of Weft is changed. `python stopping_weft.py scheduler …`
"""

import os
import signal
import sys

from weft.cli.main import main
from weft.kube.lease import Elector

_may_bind = Elector.may_bind


def _asked_then_stopped(self: Elector, seconds: float) -> bool:
    allowed = _may_bind(self, seconds)
    if allowed:
        Elector.may_bind = _may_bind  # type: ignore[method-assign]
        sys.stderr.write("stopping itself before the send\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSTOP)
    return allowed


Elector.may_bind = _asked_then_stopped  # type: ignore[method-assign]
main()
