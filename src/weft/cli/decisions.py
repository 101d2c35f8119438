"""`weft explain`, for live pods or from a decisions file, and `weft replay`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from weft.cli import completion
from weft.cli.options import Context, Kubeconfig, Output, PolicyFiles
from weft.cli.output import (
    ListOutput,
    json_text,
    print_remark,
    print_table,
    print_warning,
    table_with,
)
from weft.cli.snapshot_files import SnapshotFile
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cluster.scheduler.explain_client import SchedulerAddress
    from weft.cluster.snapshot.state import SnapshotState
    from weft.core.explain.explanation import Explanation
    from weft.core.record import ReplayResult

DEFAULT_SERVICE = "weft-system/weft-scheduler:10259"
NO_END = 3
"""Exit code if the decisions file has no end record, so that it may be incomplete."""

explain_app = Typer(
    help="Why a pod was placed on its node, or why it is pending.", no_args_is_help=True
)


@explain_app.command("pod")
def explain_pod(
    name: Annotated[
        str,
        Argument(
            help="NAMESPACE/NAME or NAME; with --decisions also a UID.",
            autocompletion=completion.pods,
        ),
    ],
    decisions: Annotated[
        Path | None,
        Option(help="A decisions file (`weft simulate --decisions`), not a live cluster."),
    ] = None,
    snapshot: SnapshotFile = None,
    url: Annotated[str, Option(help="The scheduler's own address, http://HOST:PORT.")] = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    service: Annotated[
        str,
        Option(help="The scheduler's Service; the leader's pod in its namespace is tried first."),
    ] = DEFAULT_SERVICE,
    policy: PolicyFiles = [],  # noqa: B006 - typer's way of a list default
    output: Output = ListOutput.table,
) -> None:
    """Explain why a pod is on its node, or why it is pending and which smallest change would help.

    Asks a running `weft scheduler`; with --decisions reads a file of a simulation or scheduler,
    with --snapshot a cluster's state.
    """
    for option, file in (("--decisions", decisions), ("--snapshot", snapshot)):
        if file is not None and (url or kubeconfig or context or service != DEFAULT_SERVICE):
            raise BadInputError(option, "reads a file; remove the options for a live scheduler")
    if decisions is not None and snapshot is not None:
        raise BadInputError("--snapshot", "and --decisions both name a source; remove one")
    if decisions is not None:
        _explain_from_file(decisions, name, policy, output)
    elif policy:
        raise BadInputError(
            "--policy", "requires --decisions; a live scheduler has its own policies"
        )
    elif snapshot is not None:
        _explain_from_snapshot(snapshot, name, output)
    elif url and (kubeconfig or context or service != DEFAULT_SERVICE):
        raise BadInputError("--url", "is the scheduler's own address; remove the cluster's options")
    else:
        from weft.cluster.scheduler.explain_client import SchedulerAddress

        _explain_live(SchedulerAddress(url, kubeconfig, context, service), name, output)


def _explain_live(source: "SchedulerAddress", name: str, output: ListOutput) -> None:
    from weft.cluster.scheduler.explain_client import ask, live_explanation

    body = ask(source, name)
    if output is ListOutput.json:
        import msgspec

        print(json_text(msgspec.Raw(body)))
    else:
        _print(live_explanation(body))


def _explain_from_file(decisions: Path, name: str, files: list[str], output: ListOutput) -> None:
    from weft.cli.policies import registry
    from weft.core.record import explain, read

    policies = registry()
    _note(policies.restore(read(decisions)[0], decisions, files))
    explanation = explain(decisions, name, policies.create)
    if output is ListOutput.json:
        print(json_text(explanation.json_value()))
    else:
        _print(explanation)


def _explain_from_snapshot(path: Path, name: str, output: ListOutput) -> None:
    explanation = _explained(path, name)
    if output is ListOutput.json:
        print(json_text(explanation))
    else:
        _print(explanation)


def _explained(path: Path, name: str) -> "Explanation":
    """Explain the pod NAMESPACE/NAME, or NAME if only one pod has it; `BadInputError` otherwise."""
    import asyncio

    from weft.cli.snapshot_files import open_snapshot
    from weft.cluster.scheduler.explain_service import Explainer

    state = open_snapshot(path)
    namespace, pod = _found(state, path, name)
    explained = asyncio.run(Explainer(state.live, state.parts.guard, None).explain(namespace, pod))
    assert explained is not None
    return explained


def _found(state: "SnapshotState", path: Path, name: str) -> tuple[str, str]:
    from weft.model.nearest import nearest

    known = state.live.pods.pods
    namespace, slash, pod = name.rpartition("/")
    keys = [key for key in known if key[1] == pod and (not slash or key[0] == namespace)]
    if len(keys) == 1:
        return keys[0]
    if keys:
        names = ", ".join(sorted("/".join(key) for key in keys)[:5])
        raise BadInputError(str(path), f"has {len(keys)} pods {name}: {names}; name one of them")
    near = nearest(name, ["/".join(key) for key in known] if slash else [key[1] for key in known])
    hint = f"; did you mean {near!r}?" if near else ""
    raise BadInputError(str(path), f"has no pod {name}{hint}")


def _note(notes: list[str]) -> None:
    for note in notes:
        print_remark(note)


def _print(explanation: "Explanation") -> None:
    from weft.core.explain.renderer import lines_of

    print("\n".join(lines_of(explanation)))


def replay(
    decisions: Annotated[Path, Argument(help="A decisions file.")],
    policy: PolicyFiles = [],  # noqa: B006
    output: Output = ListOutput.table,
) -> None:
    """Repeat a file's decisions, and check that they are the same and that no line was changed.

    Exit code 1 at the first decision that differs, or the first line that was changed; 3 if all
    complete lines gave equal decisions, but the file's end is missing.
    """
    import msgspec

    from weft.cli.policies import registry
    from weft.core.record import read
    from weft.core.record import replay as run

    header, lines = read(decisions)
    policies = registry()
    _note(policies.restore(header, decisions, policy))
    verdict = run(header, lines, policies.create)
    if output is ListOutput.json:
        print(json_text(_json_of(verdict) | {"file": msgspec.to_builtins(lines.check)}))
    else:
        _print_verdict(verdict, whole=lines.check.state != "incomplete")
    if lines.check.why:
        print_warning(f"{decisions}: {lines.check.why}")
    if not verdict.identical:
        sys.exit(1)
    if lines.check.state == "incomplete":
        sys.exit(NO_END)


def _print_verdict(verdict: "ReplayResult", *, whole: bool) -> None:
    if verdict.identical:
        how = "100 % identical" if whole else "identical up to where the file is cut off"
        print(f"{how}: {verdict.decisions:,} decisions in {verdict.events:,} events")
        return
    _print_difference(verdict)


def _print_difference(verdict: "ReplayResult") -> None:
    """Print the first decision that differs, and its fields as recorded and as replayed."""
    from weft.core.record.replay import differences

    record = verdict.was or verdict.now
    assert record is not None
    print(
        f"decision {verdict.difference_at:,} differs, of pod {record.namespace}/{record.name} "
        f"(UID {record.uid}), attempt {record.attempt}"
    )
    table = table_with("field|recorded|replayed")
    for difference in differences(verdict):
        table.add_row(*difference)
    print_table(table)


def _json_of(verdict: "ReplayResult") -> dict[str, object]:
    """Return the result of a replay for JSON, with its differences in words."""
    import msgspec

    from weft.core.record.replay import differences

    fields = msgspec.to_builtins(verdict)
    return {**fields, "differences": [each._asdict() for each in differences(verdict)]}
