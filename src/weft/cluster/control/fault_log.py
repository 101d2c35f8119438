"""Counts failed decisions, answers and side tasks, and logs each once: per pod and error, or per
task."""

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterator

from weft.core.engine.decision_faults import Faulted, in_words
from weft.model.errors import PolicyError
from weft.model.log_fields import NamedPod, about

log = logging.getLogger("weft.cluster")
_KEPT = 10_000  # faults that are remembered; beyond that one may be logged again


class FaultLog:
    """Counts and logs the faults of one process. `count` is the number of failures."""

    def __init__(self) -> None:
        self.count = 0
        self._logged: OrderedDict[tuple[str, str], None] = OrderedDict()

    def observe(self, command: Faulted) -> bool:
        """Log the engine's report of a failed decision; return True if the decision is about a
        pod."""
        record = command.record
        pod = record if command.pod is not None else None
        self.report(pod, record.fault, command.error, cycle=record.seq)
        return command.pod is not None

    def report(
        self,
        pod: NamedPod | None,
        why: str,
        error: BaseException,
        *,
        cycle: int | None = None,
        kind: str = "",
    ) -> None:
        """Count a failure, and log it unless one of the same pod and `kind` was logged before.
        `pod` is None for a failure about no pod; `why` describes the failure, and is the default
        `kind`."""
        self.count += 1
        name = f"{pod.namespace}/{pod.name}" if pod is not None else ""
        key = name, kind or why
        known = key in self._logged
        self._logged[key] = None
        self._logged.move_to_end(key)
        if known:
            return
        if len(self._logged) > _KEPT:
            self._logged.popitem(last=False)
        subject = f"pod {name}: " if name else ""
        whose = f"policy {error.policy}" if isinstance(error, PolicyError) else "Weft"
        text, fields = "%s%s; this is a mistake in %s", about(pod, cycle=cycle)
        log.error(text, subject, why, whose, exc_info=error, extra=fields)

    def task(self, task: str, error: Exception) -> None:
        """Count a failure outside decisions, and log it if it is the first of this task and kind
        of error."""
        whose = error.policy if isinstance(error, PolicyError) else type(error).__name__
        self.report(None, in_words(error, task), error, kind=f"{task}: {whose}")

    @contextlib.contextmanager
    def beside(self, task: str) -> Iterator[None]:
        """Count and log an error raised in the context, and suppress it."""
        try:
            yield
        except Exception as error:
            self.task(task, error)

    def answering(self, pod: NamedPod | None, error: BaseException) -> str:
        """Log that an answer about a pod failed; return the text to answer instead."""
        why = in_words(error, "answering about this pod")
        self.report(pod, why, error)
        return why


MOST = 1_000


class LogOnce:
    """Remembers what was logged (`topics`); once it has `MOST` topics, nothing new is logged."""

    def __init__(self) -> None:
        self.topics: set[str] = set()

    def is_new(self, topic: str) -> bool:
        """Return True, and remember the topic, if it was not logged before."""
        if topic in self.topics or len(self.topics) >= MOST:
            return False
        self.topics.add(topic)
        return True

    def forget(self, prefix: str) -> bool:
        """Let topics with this prefix be logged again; return True if there were any."""
        over = {what for what in self.topics if what.startswith(prefix)}
        self.topics -= over
        return bool(over)
