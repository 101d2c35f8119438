"""`weft console`: shows a live, recorded or simulated cluster, or a snapshot, in a browser."""

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Option, echo

from weft.cli.decisions import DEFAULT_SERVICE
from weft.cli.options import Context, Kubeconfig, PolicyFiles
from weft.cli.output import print_remark, print_warning
from weft.cli.snapshot_files import SnapshotFile
from weft.model.errors import BadInputError, WeftError

if TYPE_CHECKING:
    from weft.cluster.control.live_cluster import EngineCluster
    from weft.cluster.http.viewers import Viewers
    from weft.cluster.scheduler.explain_client import SchedulerExplainer
    from weft.console.comparison import Comparisons
    from weft.console.health import Health
    from weft.console.sources import PictureSource
    from weft.core.framework.registry import Registry
    from weft.kube.client import ApiClient, Endpoint

LOOPBACK = "127.0.0.1"
EXPLAIN_TOKEN = Path("/var/run/secrets/weft-explain/token")
"""File with a token for the scheduler, where deploy/console.yaml mounts it."""
DEMO_POLICY = "auto"
_RIGHTS = "bind yourself to the ClusterRole of deploy/reader.yaml"

_Config = Annotated[
    Path | None,
    Option(
        help="The configuration in use.  "
        "[default: ConfigMap weft-system/weft-config, else built in]",
        show_default=False,
    ),
]


def console(
    snapshot: SnapshotFile = None,
    demo: Annotated[
        bool,
        Option("--demo", help="Show a simulated cluster of 200 GPUs that changes in real time."),
    ] = False,
    decisions: Annotated[
        Path | None,
        Option(
            help="A decisions file (`weft scheduler --decisions`): every moment of it, and the "
            "same day under other policies."
        ),
    ] = None,
    policy: PolicyFiles = [],  # noqa: B006 - typer's way of a list default
    config: _Config = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    port: Annotated[
        int, Option(min=0, max=65535, help="The port to listen on; 0: any free one.")
    ] = 8470,
    address: Annotated[
        str,
        Option(help="The address to listen on; with any other than 127.0.0.1, consider --sign-in."),
    ] = LOOPBACK,
    sign_in: Annotated[
        bool,
        Option(
            "--sign-in",
            help="Ask viewers for a token, and show each only names of pods that they may list.",
        ),
    ] = False,
    audience: Annotated[
        str, Option(help="With --sign-in: the audience of tokens.  [default: the console's own]")
    ] = "",
) -> None:
    """Show in a browser who holds which GPU, which pods wait and why.

    Shows the cluster of the kubeconfig as it changes; with --snapshot a file, with --decisions a
    record with a slider over its time, with --demo a simulated one. Prints the address to open, and
    serves it until Ctrl-C. Shows, and changes nothing.
    """
    given = {"--snapshot": snapshot, "--decisions": decisions, "--demo": demo or None}
    named = [option for option, value in given.items() if value is not None]
    if len(named) > 1:
        raise BadInputError(named[0], f"selects what to show; remove {' and '.join(named[1:])}")
    offline = named[0] if named else ""
    if policy and decisions is None:
        raise BadInputError("--policy", "requires --decisions")
    if offline and (kubeconfig or context or config):
        what = "does not read a cluster; remove --kubeconfig, --context and --config"
        raise BadInputError(offline, what)
    if sign_in and offline:
        raise BadInputError("--sign-in", f"checks rights on a live cluster; remove {offline}")
    if audience and not sign_in:
        raise BadInputError("--audience", "sets the audience of tokens; it requires --sign-in")
    where = ConsoleAddress(address, port, sign_in, audience)
    if demo:
        asyncio.run(_serve(_demo(), where))
    elif snapshot is not None:
        asyncio.run(_serve(_snapshot(snapshot), where))
    elif decisions is not None:
        source, comparisons = _decisions(decisions, policy)
        asyncio.run(_serve(source, where, comparisons=comparisons))
    else:
        _show_cluster(config, kubeconfig, context, where)


class ConsoleAddress(NamedTuple):
    """Address at which the console is served, and whether viewers sign in, with tokens of this
    `audience` ("": the console's own)."""

    address: str
    port: int
    sign_in: bool = False
    audience: str = ""


def _demo() -> "PictureSource":
    from time import time_ns

    from weft.console.sources import LivingSource
    from weft.core.policies.catalog import built_in
    from weft.lab.simulate.living import LivingCluster

    policy = built_in().create(DEMO_POLICY)
    return LivingSource(LivingCluster(policy, time_ns()), f"simulated, policy {DEMO_POLICY}")


def _snapshot(path: Path) -> "PictureSource":
    from weft.cli.snapshot_files import open_snapshot
    from weft.console.cluster_sources import SnapshotSource

    return SnapshotSource(open_snapshot(path), path.name)


def _decisions(path: Path, files: list[str]) -> "tuple[PictureSource, Comparisons]":
    from weft.cli.policies import registry
    from weft.console.comparison import Comparisons
    from weft.console.recorded import RecordedSource
    from weft.core.record import explain, read
    from weft.core.record.passing import RecordedRun

    policies = registry()
    offered = list(_without_inputs(policies))  # none of a file: the simulation does not know it
    for note in policies.restore(read(path)[0], path, files):
        print_remark(note)
    run = RecordedRun(path, policies.create)
    echo(f"weft: replaying {len(run.at_s):,} events of {path}", err=True)
    source = RecordedSource(run, path.name, lambda name: explain(path, name, policies.create))
    if run.trouble:
        print_warning(f"{path}: {run.trouble}")

    def open_day(out: Path) -> RecordedSource:
        day = RecordedRun(out, policies.create)
        return RecordedSource(
            day,
            out.name,
            lambda name: explain(out, name, policies.create),
            day.offset_s,
            source.elapsed_s,
        )

    size = 0 if path.suffix == ".gz" else path.stat().st_size
    return source, Comparisons(source, offered, partial(_simulating, path), open_day, size)


def _without_inputs(policies: "Registry") -> Iterator[str]:
    """Yield the policies that need no options, and no inputs besides the cluster and its pods, as
    a record has no other inputs."""
    from weft.core.framework import Profile
    from weft.core.framework.fragments import TYPICAL_PODS
    from weft.core.framework.popularity import POPULAR_PODS

    for name in policies.names():
        try:
            policy = policies.create(name)
        except BadInputError:
            continue
        reads = Profile("", [policy]).reads
        if reads.isdisjoint({"signals", "cluster", "residencies"}) and (
            {*policy.inputs} <= {TYPICAL_PODS, POPULAR_PODS}
        ):
            yield name


def _simulating(day: Path, policy: str, out: Path) -> list[str]:
    """Return the command that simulates this day under another policy; it imports nothing from the
    working directory."""
    words = [sys.executable, "-P", "-m", "weft", "simulate", "--decisions-from", str(day)]
    words += ["--policy", policy, "--decisions", str(out)]
    return [*words, "--jobs", "1", "--no-timing", "--output", "json"]


# --- a cluster ------------------------------------------------------------------------------------


def _show_cluster(
    config: Path | None, kubeconfig: Path | None, context: str, where: ConsoleAddress
) -> None:
    from msgspec.structs import replace

    from weft.cli.cluster_question import endpoint_of
    from weft.cli.snapshot_files import SYSTEM_NAMESPACE

    endpoint = endpoint_of(kubeconfig, context)
    if not endpoint.inside:  # the heartbeats are in the agents' namespace
        endpoint = replace(endpoint, namespace=SYSTEM_NAMESPACE)
    try:
        asyncio.run(_follow(endpoint, config, where))
    except BadInputError:
        raise
    except WeftError as error:
        raise BadInputError(endpoint.url, f"{error}; run weft doctor") from error


async def _follow(endpoint: "Endpoint", config: Path | None, where: ConsoleAddress) -> None:
    from weft.cluster.http.viewers import AUDIENCE, ViewerOptions, Viewers
    from weft.kube.read_only import ReadOnlyClient

    async with ReadOnlyClient(endpoint) as client, followed(client, config) as seen:
        asked = ViewerOptions(where.audience or AUDIENCE)
        viewers = Viewers(client, asked) if where.sign_in else None
        await _serve(seen.source, where, viewers, seen.health, seen.live.failed())


class FollowedSource(NamedTuple):
    """A cluster that is watched, the source of its pictures, and its health page."""

    live: "EngineCluster"
    source: "PictureSource"
    health: "Health"


@asynccontextmanager
async def followed(client: "ApiClient", config: Path | None) -> AsyncIterator[FollowedSource]:
    """Follow the cluster; `WeftError` if it cannot be read."""
    from weft.cli.absent_files import without_absent
    from weft.cli.policies import registry
    from weft.cli.snapshot import configuration_in_use
    from weft.cli.status import head_lines, wish_of
    from weft.cluster.control.server_contact import ServerContact
    from weft.cluster.reading.cluster_checks import cluster_checks
    from weft.cluster.reading.status import status_of
    from weft.cluster.shadow.watch import unreadable_lists
    from weft.console.cluster_sources import ClusterSource
    from weft.console.health import Health
    from weft.host.following import following
    from weft.host.plan import Hosting, cluster_of, plan_of
    from weft.host.shell import Background

    if refused := await unreadable_lists(client):
        raise BadInputError("your rights", f"no permission to list {', '.join(refused)}; {_RIGHTS}")
    settings = without_absent(await configuration_in_use(client, config))
    plan = plan_of(settings, registry(), Hosting(where=str(config or "")))
    parts = cluster_of(plan, client, None)
    contact = ServerContact(parts.live)
    asking = Background("", contact.run)
    async with following(plan, parts.live):
        await asking.start()
        try:
            scheduler = _scheduler_of(client.endpoint)
            source = ClusterSource(
                parts.live, parts.guard, contact, client.endpoint.url, scheduler.explain
            )
            wish = wish_of(settings)
            health = Health(lambda: status_of(client, wish, cluster_checks), head_lines)
            yield FollowedSource(parts.live, source, health)
        finally:
            await asking.close()


def _scheduler_of(endpoint: "Endpoint") -> "SchedulerExplainer":
    """Return a client for explanations: inside a pod, of the scheduler in the pod's namespace, with
    the mounted token; otherwise of the scheduler that `weft explain pod` asks."""
    from weft.cluster.scheduler.explain_client import SchedulerExplainer

    if not endpoint.inside:
        return SchedulerExplainer(endpoint, DEFAULT_SERVICE)
    service = f"{endpoint.namespace}/{DEFAULT_SERVICE.partition('/')[2]}"
    return SchedulerExplainer(endpoint, service, EXPLAIN_TOKEN if EXPLAIN_TOKEN.is_file() else None)


# --- serving --------------------------------------------------------------------------------------


async def _serve(
    source: "PictureSource",
    where: ConsoleAddress,
    viewers: "Viewers | None" = None,
    health: "Health | None" = None,
    *endless: Coroutine[None, None, None],
    comparisons: "Comparisons | None" = None,
) -> None:
    """Serve until SIGINT or SIGTERM, or until one of `endless` ends, and raise its error."""
    from weft.cluster.http.access import is_loopback
    from weft.console.server import ConsoleServer
    from weft.host.shell import cancel, stop_signal

    stop = stop_signal()
    server = ConsoleServer(source, viewers=viewers, health=health, comparisons=comparisons)
    address, port = where.address, where.port
    works = {asyncio.ensure_future(work) for work in (stop.wait(), server.run(), *endless)}
    try:
        opened = await server.listen(address, port)
        if viewers is None and not is_loopback(address):
            text = f"--address {address}: anyone who can connect sees the names of all pods; "
            print_warning(text + "--sign-in shows each viewer only what they may list")
        host = f"[{address}]" if ":" in address else address
        echo(f"weft: the console is at http://{host}:{opened} (Ctrl-C ends it)")
        done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
    except OSError as error:
        wrong = f"cannot be listened on: {error.strerror or error}; give another --port"
        raise BadInputError(f"{address}:{port}", wrong) from error
    finally:
        await cancel(works)
        await server.close()
    for work in done:
        work.result()
