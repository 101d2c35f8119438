"""The interface of runners, which carry out an experiment's cells, and their common parts:
schedulers by name, and the collection of a cell's decisions."""

import gzip
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from weft.core.framework import Plugin, Policy, Profile
from weft.core.framework.policy import PolicyOrigin
from weft.core.record import DecisionsWriter
from weft.lab.experiment.spec.experiment import ExperimentSpec, PlannedCell, SchedulerProfile
from weft.lab.simulate.event_loop import Decider, profile_of
from weft.lab.simulate.openb import read_nodes
from weft.model import BadInputError, Node
from weft.model.nearest import nearest


class CellResult(msgspec.Struct, frozen=True):
    """The result of a cell. The same cell gives the same result, byte by byte.

    `measures` are numbers to compare schedulers by, None if undefined (a percentile of no jobs).
    `run` has all measurements, as JSON types. `jobs` has one row per job (`JobTimes` and more),
    `usage` the GPUs' use over time (the known fields of `UsagePoint`). `marks` are reasons why the
    numbers are unreliable: such a cell is left out of comparisons. `decisions` is the run's
    decisions file, gzipped; empty if there is none."""

    measures: dict[str, float | None]
    run: Any
    jobs: Sequence[msgspec.Struct] = ()
    usage: Sequence[msgspec.Struct] = ()
    marks: tuple[str, ...] = ()
    decisions: bytes = b""


class Runner(Protocol):
    """Carries out cells. Runners are pickled for other processes."""

    def run(self, cell: PlannedCell) -> CellResult:
        """Run the cell; `BadInputError` if its data is invalid."""
        ...


MakePolicy = Callable[[str], Policy]
"""Function that creates a policy from a text: `name:option=value` or FILE.py:Class;
`BadInputError` if it is unknown."""
MakeScheduler = Callable[[str], Decider]


class SchedulerMaker:
    """Creates schedulers by name, a new one each time, since policies may keep what they learn.

    It is pickled for other processes."""

    def __init__(self, make_policy: MakePolicy, profiles: Sequence[SchedulerProfile] = ()) -> None:
        """Check the profiles; `BadInputError` if a profile has the name of a policy or uses an
        unknown policy."""
        self._make_policy = make_policy
        self._profiles = {profile.name: profile for profile in profiles}
        for at, profile in enumerate(profiles):
            if self._is_policy(profile.name):
                what = f"{profile.name!r} is a policy; give the profile another name"
                raise BadInputError(f"profiles[{at}].name", what)
            for number, use in enumerate(profile.policies):
                self._checked(use.policy, f"profiles[{at}].policies[{number}].policy")

    def __call__(self, name: str) -> Decider:
        """Create the scheduler with this name."""
        profile = self._profiles.get(name)
        if profile is None:
            return self._make_policy(name)
        plugins = [Plugin(self._make_policy(use.policy), use.weight) for use in profile.policies]
        return Profile(name, plugins)

    def check(self, name: str, where: str) -> None:
        """Raise `BadInputError` at the field `where` if no scheduler has this name."""
        if name not in self._profiles:
            self._checked(name, where, self._profiles)

    def origins(self, name: str) -> list[PolicyOrigin]:
        """Return the sources of this scheduler's policies, apart from Weft's own policies."""
        policies = profile_of(self(name)).policies
        return [policy.origin for policy in policies if policy.origin is not None]

    def _is_policy(self, name: str) -> bool:
        try:
            self._make_policy(name)
        except BadInputError:
            return False
        return True

    def _checked(self, policy: str, where: str, profiles: Iterable[str] = ()) -> None:
        try:
            self._make_policy(policy)
        except BadInputError as error:
            if near := nearest(policy, profiles):
                what = f"{policy!r} is unknown; did you mean {near!r}?"
                raise BadInputError(where, what) from error
            # For a policy's file, `error.where` names the line; unknown names are in the problem.
            named = repr(policy) in error.problem
            what = error.problem if named else f"{error.where}: {error.problem}"
            raise BadInputError(where, what) from error


def sources_of(spec: ExperimentSpec, make_policy: MakePolicy) -> dict[str, list[PolicyOrigin]]:
    """Return by scheduler the sources of policies that are not Weft's own.

    Cells depend on these sources: if a policy's file changed, its cells are run again."""
    make, sources = SchedulerMaker(make_policy, spec.profiles), {}
    for name in spec.schedulers:
        try:
            sources[name] = make.origins(spec.decider(name))
        except BadInputError:  # not a policy: gandiva, and schedulers that only run on a cluster
            continue
    return {name: origins for name, origins in sources.items() if origins}


LEVEL = 1
"""gzip's level; 9 takes longer and saves only a fifth."""


class DecisionsKept:
    """Collects the decisions of one run, if `wanted`."""

    def __init__(self, *, wanted: bool) -> None:
        self._lines = io.BytesIO()
        self.writer = DecisionsWriter(self._lines) if wanted else None
        """The writer of the decisions file; None if decisions are not wanted."""

    def packed(self) -> bytes:
        """Return the whole file, gzipped, equal for equal decisions; empty if there are no
        decisions."""
        if self.writer is None or not self._lines.tell():
            return b""
        self.writer.close()
        return gzip.compress(self._lines.getvalue(), LEVEL, mtime=0)


def every_nth_node(file: Path, every_node: int) -> list[Node]:
    """Read every `every_node`-th node of an openb node list; `BadInputError` if none of these nodes
    has a GPU."""
    nodes = read_nodes(file)[::every_node]
    if not any(node.gpus for node in nodes):
        what = f"has no GPU if only one in {every_node} nodes is used; lower everyNode"
        raise BadInputError(str(file), what)
    return nodes
