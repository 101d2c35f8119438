"""`weft status`: the leader, versions, nodes, pending pods, problems and the next command to
run."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Exit

from weft.cli.cluster_question import answer
from weft.cli.doctor import print_findings
from weft.cli.options import ConfigFile, Context, Kubeconfig, Output
from weft.cli.output import ListOutput, json_text, print_note, print_table, table_with

if TYPE_CHECKING:
    from weft.cluster.config.form import Configuration
    from weft.cluster.reading.status import StatusReport, StatusWish

_MOST_REASONS = 20


def status(
    config: ConfigFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """Show the state of Weft on a cluster; exit code 1 if something is wrong.

    Shows the leader, versions, nodes by delivery and isolation, pods by reason, problems and the
    next command. Reads only the API server: nodes, pods, the Lease, events.
    """
    from weft.cluster.reading.status import status_of

    wish = _wish(config)
    report = answer(kubeconfig, context, lambda client: status_of(client, wish))
    if output is ListOutput.json:
        print(json_text(_as_json(report), indent=2))
    else:
        _show(report)
    if report.wrong:
        raise Exit(1)


def _wish(config: Path | None) -> "StatusWish":
    from weft.cli.scheduler import configuration

    return wish_of(configuration(config))


def wish_of(loaded: "Configuration") -> "StatusWish":
    """Return the inputs of a status from the configuration: its Lease, schedulerNames and dialect
    settings."""
    from weft.cluster.reading.reading import how_to_read
    from weft.cluster.reading.status import StatusWish

    names = frozenset(profile.scheduler_name for profile in loaded.profiles)
    return StatusWish(loaded.lease.namespace, loaded.lease.name, names, how_to_read(loaded))


def _as_json(report: "StatusReport") -> dict[str, object]:
    from msgspec import structs

    fields = structs.asdict(report)
    fields["findings"] = [finding._asdict() for finding in report.findings]
    return fields


def _show(report: "StatusReport") -> None:
    for line in head_lines(report):
        print_note(line)
    if report.nodes:
        print()
        _nodes(report)
    if report.pods:
        print()
        _pods(report)
    troubles = [finding for finding in report.findings if finding.level != "good"]
    troubles.sort(key=lambda finding: finding.level != "wrong")
    print()
    if not troubles:
        print_note("No problem found.")
        return
    print_findings(troubles)


def head_lines(report: "StatusReport") -> list[str]:
    """Return the first lines: the leader, and the versions that run."""
    leader = report.leader
    if not leader.known:
        who = "who leads is not known"
    elif leader.leads:
        who = f"{leader.holder} leads (Lease {leader.lease}, term {leader.term})"
    else:
        who = f"no process leads (Lease {leader.lease})"
    ready = f"{report.schedulers_ready} of {report.schedulers} pods ready"
    versions = [f"{part.part} {part.version or '?'} ×{part.count}" for part in report.versions]
    return [f"Scheduler: {who}; {ready}.", f"Versions: {', '.join(versions) or 'none known'}."]


def _nodes(report: "StatusReport") -> None:
    table = table_with("delivery|isolation|>nodes|>ready|>GPUs|>MiB|>promised MiB")
    for group in report.nodes:
        table.add_row(
            group.delivery,
            ", ".join(group.isolation) or "–",
            str(len(group.nodes)),
            str(group.ready),
            str(group.gpus),
            f"{group.memory_mib:,}",
            f"{group.promised_mib:,}",
        )
    print_table(table)


def _pods(report: "StatusReport") -> None:
    table = table_with("pods|>count|oldest|reason")
    for group in report.pods[:_MOST_REASONS]:
        table.add_row(group.state, str(group.count), group.oldest, group.reason)
    print_table(table)
    if len(report.pods) > _MOST_REASONS:
        print_note(f"{len(report.pods) - _MOST_REASONS} more reasons: -o json shows all.")
