"""Where `weft simulate` begins without a trace: a day on record, or a cluster's state."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from typer import echo

from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weft.core.framework.registry import Registry
    from weft.lab.experiment.run.trace_runs import RunGrid
    from weft.lab.simulate.arrivals import Arrivals
    from weft.lab.simulate.scenario import Scenario


class SimulationStart(NamedTuple):
    """A decisions file, or a snapshot; no path: a trace instead."""

    path: Path | None
    of_snapshot: bool = False

    @property
    def option(self) -> str:
        """The option that names it."""
        return "--snapshot" if self.of_snapshot else "--decisions-from"

    def check(self, trace: Path | None, seeds: int, times: bool, demand: float | None) -> None:
        """Checks that no nodes, pods, times or seed are given beside its own: `BadInputError`."""
        if trace is not None:
            raise BadInputError(self.option, f"is a cluster and a workload; leave {trace} out")
        if seeds != 1:
            once = "a cluster's state is one" if self.of_snapshot else "a recorded day came once"
            raise BadInputError("--seeds", f"{once}; leave it out")
        if times or demand is not None:
            as_is = "goes on from a state" if self.of_snapshot else "runs a day as it came"
            raise BadInputError(self.option, f"{as_is}; leave --timed, --compress and --demand out")

    def grid(self, policies: list[str], timing: bool) -> "RunGrid":
        """Every policy once; what must be known of the start goes to stderr."""
        from weft.cli.policies import registry
        from weft.lab.experiment.run.trace_runs import RunGrid
        from weft.lab.experiment.statistics.ranking import ONE_DAY, ONE_STATE

        assert self.path is not None
        known = registry()
        for name in policies:
            known.from_spec(name)
        scenario, arrivals, notes = self._read(self.path, known)
        for line in notes:
            echo(f"weft: {self.path}: {line}", err=True)
        names = tuple(dict.fromkeys(policies))
        orders, make = (arrivals,), known.from_spec
        if self.of_snapshot:
            return RunGrid(scenario, names, orders, make, timing=timing, once=ONE_STATE)
        return RunGrid(scenario, names, orders, make, "timed", timing=timing, once=ONE_DAY)

    def _read(self, path: Path, known: "Registry") -> "tuple[Scenario, Arrivals, Iterable[str]]":
        if self.of_snapshot:
            return _of_state(path)
        from weft.lab.simulate.recorded_day import read_day, summary

        day = read_day(path)
        return day.scenario, day.arrivals, summary(day)


def _of_state(path: Path) -> "tuple[Scenario, Arrivals, Iterable[str]]":
    from weft.cli.snapshot_files import open_snapshot
    from weft.lab.simulate.held_start import HeldStart, scenario_of

    state = open_snapshot(path)
    pending, bad = state.pending()
    notes = [f"pod {pod.name} is left out: {pod.why}" for pod in bad]
    if not pending:
        raise BadInputError(str(path), "has no pod that waits for a place: nothing to decide")
    limits = state.engine.ledger.limits
    start = HeldStart(state.nodes, state.events(), pending, state.usual(), limits)
    scenario, arrivals = scenario_of(start, state.engine.seed)
    gpus = sum(len(node.gpus) for node in state.nodes)
    head = (
        f"taken {state.snapshot.taken_at}: {len(state.nodes):,} nodes with {gpus:,} GPUs, "
        f"{len(state.bound):,} pods stay where they are, {len(pending):,} wait"
    )
    return scenario, arrivals, [head, *notes]
