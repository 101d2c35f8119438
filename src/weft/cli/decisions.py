"""`weft explain`, live or from a decisions file, and `weft replay`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.explain_pod import DEFAULT_SERVICE, SchedulerAddress, ask, live_lines, metrics_lines
from weft.cli.output import ListOutput, json_text
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.core.record import RecordedExplanation, ReplayResult

_Output = Annotated[ListOutput, typer.Option(help="What to print.")]

explain_app = typer.Typer(help="Why a pod is where it is, or nowhere.", no_args_is_help=True)


@explain_app.callback()
def _explain_root() -> None:
    """Why a pod is where it is, or nowhere, and what would have to change."""


@explain_app.command("pod")
def explain_pod(
    name: Annotated[
        str, typer.Argument(help="NAMESPACE/NAME or NAME; of a decisions file also a UID.")
    ],
    decisions: Annotated[
        Path | None,
        typer.Option(help="A decisions file (`weft simulate --decisions`), not a live cluster."),
    ] = None,
    url: Annotated[str, typer.Option(help="The scheduler's own address, http://HOST:PORT.")] = "",
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="Which cluster.  [default: KUBECONFIG, the pod's own, ~/.kube/config]"),
    ] = None,
    context: Annotated[str, typer.Option(help="Of the kubeconfig.  [default: its current]")] = "",
    service: Annotated[
        str, typer.Option(help="The scheduler's Service; through the API server, its leader first.")
    ] = DEFAULT_SERVICE,
    output: _Output = ListOutput.table,
) -> None:
    """Why here; or why nowhere, and the smallest change that would make the pod fit.

    Of a running `weft scheduler`, or with --decisions of a file that a simulation wrote.
    """
    if decisions is not None:
        if url or kubeconfig or context or service != DEFAULT_SERVICE:
            raise BadInputError("--decisions", "is a file; leave out what names a live scheduler")
        _explain_from_file(decisions, name, output)
    elif url and (kubeconfig or context or service != DEFAULT_SERVICE):
        raise BadInputError("--url", "names the scheduler itself; leave out the cluster's options")
    else:
        _explain_live(SchedulerAddress(url, kubeconfig, context, service), name, output)


def _explain_live(source: SchedulerAddress, name: str, output: ListOutput) -> None:
    body = ask(source, name)
    if output is ListOutput.json:
        import msgspec

        print(json_text(msgspec.Raw(body)))
    else:
        print("\n".join(live_lines(body)))


def _explain_from_file(decisions: Path, name: str, output: ListOutput) -> None:
    from weft.cli.policies import registry
    from weft.core.record import explain

    found = explain(decisions, name, registry().create)
    if output is ListOutput.json:
        print(json_text(found))
    else:
        print("\n".join(lines_of(found)))


def lines_of(found: "RecordedExplanation") -> list[str]:
    """The explanation as sentences."""
    from weft.core.engine.harvest import eviction_in_words, harvest_in_words
    from weft.core.engine.oom_history import charged_in_words
    from weft.core.engine.overbooking import DoubleBooking, double_booking_in_words
    from weft.core.engine.records import BOUNDED, FAULTED, LEAVES
    from weft.core.engine.slowdown_eviction import slowed_in_words
    from weft.core.explain.counterfactual import AlternativePlacement

    record, pod = found.record, found.pod
    head = f"{pod.namespace}/{pod.name} (UID {pod.uid}), profile {record.profile}"
    lines = [f"{head}, attempt {record.attempt}, decision {record.seq}"]
    if record.outcome == "placed":
        lines.append(f"  placed on {record.node}{_devices(found)}")
        lines += [
            f"  {'chosen' if top.node == record.node else 'next  '} {top.node}: score {top.score}"
            + "".join(f", {name} {score}" for name, score in top.scores.items())
            for top in record.top
        ]
        lines += [f"  {harvest_in_words(one)}" for one in record.harvested]
        lines += [f"  {BOUNDED}"] if record.bounded else []
    elif record.outcome == LEAVES:
        lines.append(f"  asked to leave {record.node}{_devices(found)}; {found.then}")
        lines += [f"  {eviction_in_words(record.eviction)}"] if record.eviction else []
        lines += [f"  {slowed_in_words(record.slowed)}"] if record.slowed else []
        if isinstance(record.double_booked, DoubleBooking):
            lines.append(f"  {double_booking_in_words(record.double_booked, record.node)}")
    elif record.outcome == FAULTED:
        return [*lines, f"  {record.fault}"]
    else:
        lines.append("  fits nowhere")
    lines += [f"  {charged_in_words(record.charged)}"] if record.charged else []
    lines += metrics_lines(found.metrics, AlternativePlacement(record.node, record.shares))
    lines.append(f"  {found.summary}")
    if record.outcome == "unschedulable":
        lines.append("  it would fit, if you")
        lines += [f"    - {change.text}" for change in found.changes]
        if not found.changes:
            lines[-1] = "  no single change of the pod, and no one pod's end, would make it fit"
    if found.other_uids:
        lines.append(
            f"  {len(found.other_uids)} more pods have this name; ask by UID: "
            + ", ".join(found.other_uids[:5])
        )
    return lines


def _devices(found: "RecordedExplanation") -> str:
    shares = found.record.shares
    if not shares:
        return ""
    each = [
        f"GPU {share.gpu} ({share.milli / 10:g} % of cores, {share.memory_mib:,} MiB)"
        for share in shares
    ]
    return ", " + ", ".join(each)


def replay(
    decisions: Annotated[Path, typer.Argument(help="A decisions file.")],
    output: _Output = ListOutput.table,
) -> None:
    """Decide a decisions file again; exit 1 at the first decision that is not the same."""
    from weft.cli.policies import registry
    from weft.core.record import read
    from weft.core.record import replay as run

    header, lines = read(decisions)
    verdict = run(header, lines, registry().create)
    if output is ListOutput.json:
        print(json_text(verdict))
    else:
        print(_sentence(verdict))
    if not verdict.identical:
        sys.exit(1)


def _sentence(verdict: "ReplayResult") -> str:
    if verdict.identical:
        return f"100 % identical: {verdict.decisions:,} decisions in {verdict.events:,} events"
    return (
        f"decision {verdict.difference_at:,} differs in {', '.join(verdict.fields)}\n"
        f"  was: {verdict.was}\n  now: {verdict.now}"
    )
