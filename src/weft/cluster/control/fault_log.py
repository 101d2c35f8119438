"""Decisions and answers that broke off: counted, and told once for each pod and fault."""

import logging
from collections import OrderedDict

from weft.core.engine.decision_faults import Faulted, in_words
from weft.model.errors import PolicyError

log = logging.getLogger("weft.cluster")
_KEPT = 10_000  # faults that are remembered; of more, one may be told again


class FaultLog:
    """Counts and logs the faults of one process. `count` is how often something broke off."""

    def __init__(self) -> None:
        self.count = 0
        self._logged: OrderedDict[tuple[str, str], None] = OrderedDict()

    def observe(self, command: Faulted) -> bool:
        """The engine says that a decision broke off; whether it is about a pod."""
        record = command.record
        self.report(
            f"{record.namespace}/{record.name}" if command.pod else "", record.fault, command.error
        )
        return command.pod is not None

    def report(self, about: str, why: str, error: BaseException | None = None) -> None:
        """Something about a pod (NAMESPACE/NAME, or "") broke off; `why` in words."""
        self.count += 1
        known = (about, why) in self._logged
        self._logged[about, why] = None
        self._logged.move_to_end((about, why))
        if known:
            return
        if len(self._logged) > _KEPT:
            self._logged.popitem(last=False)
        subject = f"pod {about}: " if about else ""
        whose = f"policy {error.policy}" if isinstance(error, PolicyError) else "Weft"
        log.error("%s%s; this is a mistake in %s", subject, why, whose, exc_info=error)

    def answering(self, about: str, error: BaseException) -> str:
        """Log that an answer about a pod broke off; returns what to say instead."""
        why = in_words(error, "answering about this pod")
        self.report(about, why, error)
        return why
