"""A hollow pod's pretended life: how long it takes to start, what it uses, how it ends.

A profile comes from the pod's own annotations, or from a function of the pod. All times are
seconds; memory is MiB on each GPU that the pod has.

| annotation | example | left out |
|---|---|---|
| `weft.dev/hollow-start-up-s` | `4.5` | 0: it runs at once |
| `weft.dev/hollow-run-s` | `60` | it runs for ever |
| `weft.dev/hollow-memory-mib` | `3000`, or `0:500, 10:3000` from those seconds of its run on | all it was given |
| `weft.dev/hollow-exit-code` | `1` | 0 |
| `weft.dev/hollow-stop-s` | `5`; `never` ignores SIGTERM | 0: it ends at once when deleted |
"""  # noqa: E501 - a row of a table is a line

import math
from collections.abc import Callable, Mapping

import msgspec

from weft.model import BadInputError
from weft.model.annotations import HOLLOW_PROFILE as PREFIX

START_UP, RUN, MEMORY = f"{PREFIX}start-up-s", f"{PREFIX}run-s", f"{PREFIX}memory-mib"
EXIT_CODE, STOP = f"{PREFIX}exit-code", f"{PREFIX}stop-s"
NEVER = "never"

Steps = tuple[tuple[float, int], ...]
Curve = Callable[[float], int]


class HollowProfile(msgspec.Struct, frozen=True):
    """One pod's pretence.

    `start_up_s` from its admission until its containers run; `run_s` of every run (None: for
    ever), after which they exit with `exit_code`. `memory_mib`: steps (from this second of the
    run on, so many MiB, in order), or a function of the second, asked every `sample_s`; None: what
    the pod was given. `stop_s` after SIGTERM it ends by itself; None: it waits to be killed.
    """

    start_up_s: float = 0.0
    run_s: float | None = None
    memory_mib: Steps | Curve | None = None
    exit_code: int = 0
    stop_s: float | None = 0.0
    sample_s: float = 1.0

    def memory_at(self, second: float, given_mib: int) -> int:
        """MiB used on a GPU of which the pod was given so much, at this second of a run."""
        if self.memory_mib is None:
            return given_mib
        if not isinstance(self.memory_mib, tuple):
            return self.memory_mib(second)
        used = 0
        for at_s, mib in self.memory_mib:
            if at_s <= second:
                used = mib
        return used

    def next_change_s(self, second: float) -> float:
        """The first second after this one at which the memory may change; infinity for none."""
        if self.memory_mib is None:
            return math.inf
        if not isinstance(self.memory_mib, tuple):
            return second + self.sample_s
        return next((at_s for at_s, _ in self.memory_mib if at_s > second), math.inf)


def read_profile(annotations: Mapping[str, str] | None) -> HollowProfile:
    """The profile that these annotations ask for; `BadInputError` names the one that is wrong."""
    marks = {name: text for name, text in (annotations or {}).items() if name.startswith(PREFIX)}
    unknown = marks.keys() - {START_UP, RUN, MEMORY, EXIT_CODE, STOP}
    if unknown:
        raise BadInputError(min(unknown), "is not known to the hollow kubelet")
    exit_code = _seconds(marks, EXIT_CODE) or 0.0
    if exit_code not in range(256):
        raise BadInputError(EXIT_CODE, f"{marks[EXIT_CODE]!r} is no exit code, 0 to 255")
    stop_s = None if marks.get(STOP) == NEVER else _seconds(marks, STOP) or 0.0
    return HollowProfile(
        start_up_s=_seconds(marks, START_UP) or 0.0,
        run_s=_seconds(marks, RUN),
        memory_mib=_steps(marks[MEMORY]) if MEMORY in marks else None,
        exit_code=int(exit_code),
        stop_s=stop_s,
    )


def _seconds(marks: Mapping[str, str], name: str) -> float | None:
    return _number(name, marks[name]) if name in marks else None


def _steps(text: str) -> Steps:
    steps = []
    for part in text.split(","):
        at_s, colon, mib = part.rpartition(":")
        amount = _number(MEMORY, mib)
        if amount != int(amount):
            raise BadInputError(MEMORY, f"{mib.strip()!r} is not a whole number of MiB")
        steps.append((_number(MEMORY, at_s) if colon else 0.0, int(amount)))
    if [at_s for at_s, _ in steps] != sorted({at_s for at_s, _ in steps}):
        raise BadInputError(MEMORY, f"{text!r}: the seconds must grow from step to step")
    return tuple(steps)


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (number >= 0 and math.isfinite(number)):
        raise BadInputError(name, f"{text.strip()!r} is no number of 0 or more")
    return number
