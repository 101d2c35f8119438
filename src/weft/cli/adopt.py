"""`weft adopt`: takes over a running cluster from other GPU schedulers, and back."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from weft.cli.cluster_question import answer
from weft.cli.options import ConfigFile, Context, Kubeconfig, Output
from weft.cli.output import ListOutput, json_text, print_note, print_table, table_with
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.cluster.adoption.account import PodAccount
    from weft.cluster.adoption.opt_in import OptInChange
    from weft.cluster.adoption.plan import AdoptionPlan, AdoptionProblem, AdoptionWish
    from weft.kube.client import ApiClient

_DryRun = Annotated[bool, Option("--dry-run", help="Write nothing (the default without --yes).")]
_Yes = Annotated[bool, Option("--yes", help="Label the namespaces, after recording their state.")]
_Undo = Annotated[bool, Option("--undo", help="Revert what --yes changed.")]
_Namespaces = Annotated[
    list[str] | None,
    Option(
        "-n",
        "--namespace",
        help="A namespace to opt in; may be given several times.  "
        "[default: those whose pods ask for GPUs and name no scheduler]",
    ),
]
_Quiet = Annotated[bool, Option("-q", "--quiet", help="Show only pods whose state is not adopted.")]


def adopt(
    dry_run: _DryRun = False,
    yes: _Yes = False,
    undo: _Undo = False,
    namespace: _Namespaces = None,
    quiet: _Quiet = False,
    config: ConfigFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """Show how each running GPU pod would be charged, and how to switch to Weft and back.

    Reads the annotations of Elastic GPU, gpushare, Co-scheML, Alnair, Genius, Kube-Knots, HAMi, KAI
    Scheduler, Volcano and Koordinator, and ResourceClaims, as the scheduler does. No pod is
    changed, restarted or evicted. With --yes namespaces are labelled weft.dev/schedule=enabled;
    their former state is kept in the ConfigMap kube-system/weft-adoption. Exit code 1: something
    must be fixed first, and nothing was written.
    """
    if dry_run and yes:
        raise BadInputError("--dry-run", "contradicts --yes; remove one of them")
    if undo:
        undone = answer(kubeconfig, context, lambda client: _undo(client, write=not dry_run))
        _show_undone(undone, dry_run, output)
        return
    wish = _wish(namespace or (), config)
    plan, problems = answer(kubeconfig, context, lambda client: _planned(client, wish, yes))
    changes = None
    if yes and plan is not None and not problems:
        names = plan.opt_in
        changes = answer(kubeconfig, context, lambda client: _opt_in(client, names))
    if output is ListOutput.json:
        print(json_text(_as_json(plan, problems, changes), indent=2))
    else:
        _show(plan, problems, changes, quiet)
    if problems or any(not change.done for change in changes or ()):
        raise Exit(1)


def _wish(namespaces: "Sequence[str]", config: Path | None) -> "AdoptionWish":
    from weft.cli.scheduler import configuration
    from weft.cluster.adoption.plan import AdoptionWish
    from weft.cluster.reading.reading import how_to_read

    settings = configuration(config)
    names = frozenset(profile.scheduler_name for profile in settings.profiles)
    return AdoptionWish(tuple(namespaces), names, how_to_read(settings))


async def _planned(
    client: "ApiClient", wish: "AdoptionWish", writes: bool
) -> "tuple[AdoptionPlan | None, Sequence[AdoptionProblem]]":
    """Return the plan (None if too few objects may be read), and the problems to fix before
    writing."""
    from weft.cluster import rights
    from weft.cluster.adoption import plan

    lacking = await plan.lacking_rights(client, rights.ADOPT)
    if lacking is not None:
        return None, (lacking,)
    logging.getLogger("weft").addHandler(logging.NullHandler())  # the table shows the same
    objects = await plan.read_cluster(client)
    planned = plan.plan_of(objects, plan.account_for(client, objects, wish), wish)
    problems = planned.problems
    if writes and (lacking := await plan.lacking_rights(client, rights.ADOPT_WRITES)) is not None:
        problems = (lacking, *problems)
    return planned, problems


async def _opt_in(client: "ApiClient", names: "Sequence[str]") -> "list[OptInChange]":
    from weft.cluster.adoption.opt_in import opt_in

    return await opt_in(client, names)


async def _undo(client: "ApiClient", *, write: bool) -> "list[OptInChange]":
    from weft.cluster import rights
    from weft.cluster.adoption import opt_in, plan

    lacking = await plan.lacking_rights(client, rights.ADOPT_WRITES)
    if lacking is not None:
        raise BadInputError(lacking.object, f"{lacking.problem}; {lacking.remedy}")
    return await opt_in.undo(client, write=write)


# --- output --------------------------------------------------------------------------------------


def _as_json(
    plan: "AdoptionPlan | None",
    problems: "Sequence[AdoptionProblem]",
    changes: "Sequence[OptInChange] | None",
) -> dict[str, object]:
    from weft.cluster.adoption.plan import roll_back_commands, switch_commands

    report: dict[str, object] = {"problems": [problem._asdict() for problem in problems]}
    if plan is not None:
        report |= {
            "pods": plan.account.pods,
            "overfull": [gpu._asdict() for gpu in plan.account.overfull],
            "namespaces": plan.opt_in,
            "waiting": plan.waiting,
            "originals": [original._asdict() for original in plan.originals],
            "configurations": plan.configurations,
            "release": plan.release and plan.release._asdict(),
            "switch": switch_commands(plan),
            "rollBack": roll_back_commands(plan),
        }
    if changes is not None:
        report["changes"] = [change._asdict() for change in changes]
    return report


def _show(
    plan: "AdoptionPlan | None",
    problems: "Sequence[AdoptionProblem]",
    changes: "Sequence[OptInChange] | None",
    quiet: bool,
) -> None:
    from weft.cluster.adoption.plan import roll_back_commands, switch_commands

    if plan is not None:
        _show_pods(plan.account.pods, quiet)
        for note in _notes(plan):
            print_note(note)
    if problems:
        print()
        print_note("Nothing is written until this is fixed:")
        for problem in problems:
            print_note(f"  {problem.object}: {problem.field}: {problem.problem}")
            print_note(f"    → {problem.remedy}")
        return
    if changes is not None:
        print()
        for change in changes:
            print_note(f"namespace {change.namespace}: {change.text}")
        print_note("weft adopt --undo reverts this." if changes else "Nothing had to be changed.")
    elif plan is not None:
        _show_commands("To switch:", switch_commands(plan))
        _show_commands("To roll back:", roll_back_commands(plan))


def _show_pods(pods: "Sequence[PodAccount]", quiet: bool) -> None:
    counts = dict.fromkeys(("adopted", "ambiguous", "conflicting"), 0)
    table = table_with("pod|node|system|>GPU|>MiB|>cores %|state")
    for pod in pods:
        counts[pod.state] += 1
        if quiet and pod.state == "adopted":
            continue
        for share in pod.shares:
            table.add_row(
                pod.full_name,
                pod.node,
                pod.system or "?",
                str(share.gpu),
                f"{share.memory_mib:,}",
                f"{share.milli / 10:.0f}",
                pod.state,
            )
        if not pod.shares:
            table.add_row(pod.full_name, pod.node, pod.system or "?", "–", "–", "–", pod.state)
    if table.rows:
        print_table(table)
    print_note(", ".join(f"{count} {state}" for state, count in counts.items()) + ".")
    for pod in pods:
        if pod.why:
            print_note(f"{pod.state}: {pod.full_name}: {pod.why}.")


def _notes(plan: "AdoptionPlan") -> list[str]:
    from weft.cluster.adoption.plan import guessed_pods

    notes = []
    for gpu in plan.account.overfull:
        why = "by their annotations" if gpu.sure else "some of it may be on other GPUs"
        notes.append(
            f"GPU {gpu.gpu} of {gpu.node}: {gpu.charged_mib:,} MiB of {gpu.has_mib:,} are charged "
            f"to {', '.join(gpu.pods)} ({why}); Weft places no more pods there until the sum fits."
        )
    for node, pods in guessed_pods(plan).items():
        names = ", ".join(pod.full_name for pod in pods)
        notes.append(
            f"Keep pods with shares off {node} until these pods have ended, since no record says "
            f"which of its GPUs they have: {names}. kubectl cordon {node} keeps all new pods off."
        )
    if plan.waiting:
        notes.append(
            f"{len(plan.waiting)} pods wait for another scheduler ({plan.waiting[0]}): a pod's "
            "schedulerName cannot be changed; let them be placed first, or recreate them."
        )
    if plan.unread:
        notes.append(f"Not read for lack of permission: {', '.join(plan.unread)}.")
    if plan.opt_in and plan.minor < 36:
        notes.append(
            f"Kubernetes 1.{plan.minor} does not act on the namespaces' label by itself (1.36 "
            "does): install the chart, whose webhook gives their new GPU pods to Weft, or run "
            "`weft webhook`."
        )
    return notes


def _show_commands(title: str, commands: "Sequence[str]") -> None:
    print()
    print(title)
    for command in commands:
        print(f"  {command}")


def _show_undone(changes: "Sequence[OptInChange]", dry_run: bool, output: ListOutput) -> None:
    if output is ListOutput.json:
        print(json_text([change._asdict() for change in changes], indent=2))
    else:
        would = "would be: " if dry_run else ""
        for change in changes:
            print_note(f"namespace {change.namespace}: {would}{change.text}")
        if not changes:
            print_note("No change is recorded: there is nothing to revert.")
    if any(not change.done for change in changes):
        raise Exit(1)
