"""Decisions and answers that broke off: counted, and told once for each pod and fault."""

import logging
from collections import OrderedDict

from weft.core.engine.decision_faults import Faulted, in_words
from weft.kube.log_fields import NamedPod, about
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
        pod = record if command.pod is not None else None
        self.report(pod, record.fault, command.error, cycle=record.seq)
        return command.pod is not None

    def report(
        self, pod: NamedPod | None, why: str, error: BaseException, *, cycle: int | None = None
    ) -> None:
        """Something about a pod (or none) broke off; `why` in words."""
        self.count += 1
        name = f"{pod.namespace}/{pod.name}" if pod is not None else ""
        known = (name, why) in self._logged
        self._logged[name, why] = None
        self._logged.move_to_end((name, why))
        if known:
            return
        if len(self._logged) > _KEPT:
            self._logged.popitem(last=False)
        subject = f"pod {name}: " if name else ""
        whose = f"policy {error.policy}" if isinstance(error, PolicyError) else "Weft"
        text, fields = "%s%s; this is a mistake in %s", about(pod, cycle=cycle)
        log.error(text, subject, why, whose, exc_info=error, extra=fields)

    def answering(self, pod: NamedPod | None, error: BaseException) -> str:
        """Log that an answer about a pod broke off; returns what to say instead."""
        why = in_words(error, "answering about this pod")
        self.report(pod, why, error)
        return why
