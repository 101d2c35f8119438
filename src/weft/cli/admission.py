"""`weft admission`: the policies that the API server applies for Weft."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Option

from weft.cli import logs
from weft.files.reading import raw_bytes
from weft.model.errors import BadInputError


class PolicySet(StrEnum):
    """Which policies."""

    schedule = "schedule"
    protect = "protect"


_Users = list[str] | None
_SCHEDULER = Option(
    metavar="USER",
    help="A user that may write assignments; may be given several times.  "
    "[default: system:serviceaccount:weft-system:weft-scheduler]",
)
_AGENT = Option(
    metavar="USER",
    help="The same of agents, each for its own node.  "
    "[default: system:serviceaccount:weft-system:weft-agent]",
)
_PLUGIN = Option(
    metavar="USER",
    help="A user that writes pods and nodes as an original's device plugin or scheduler.",
)


def admission(
    only: Annotated[
        PolicySet | None,
        Option(
            help="schedule: who schedules pods that name no scheduler; protect: who may write "
            "where a pod's GPUs are.  [default: both]"
        ),
    ] = None,
    scheduler_name: Annotated[
        str, Option(help="The schedulerName that pods get in namespaces that opted in.")
    ] = "weft",
    scheduler: Annotated[_Users, _SCHEDULER] = None,
    agent: Annotated[_Users, _AGENT] = None,
    plugin: Annotated[_Users, _PLUGIN] = None,
    webhook: Annotated[
        str,
        Option(
            metavar="NAMESPACE/SERVICE",
            help="Before Kubernetes 1.36: where `weft webhook` answers, in the policy's place.",
        ),
    ] = "",
    ca_file: Annotated[
        Path | None, Option(help="PEM of the authority of the webhook's certificate.")
    ] = None,
) -> None:
    """Print the admission policies as YAML, for kubectl apply.

    Pods of namespaces labelled weft.dev/schedule=enabled that ask for GPUs and name no scheduler
    become Weft's (MutatingAdmissionPolicy, Kubernetes 1.36). Annotations that say which GPUs are
    whose may be written by schedulers and agents alone (ValidatingAdmissionPolicy, 1.30).
    """
    _check_users({"--scheduler": scheduler, "--agent": agent, "--plugin": plugin})
    import yaml

    from weft.cluster.admission.protection import Writers, protection_policies
    from weft.cluster.admission.scheduling import scheduling_policy

    named = scheduler or Writers().schedulers, agent or Writers().agents, plugin or ()
    if webhook or ca_file is not None:
        schedules = [_webhook(webhook, ca_file)]
    else:
        schedules = scheduling_policy(scheduler_name)
    documents = [] if only is PolicySet.protect else schedules
    if only is not PolicySet.schedule:
        documents += protection_policies(Writers(*map(tuple, named)))
    print(yaml.safe_dump_all(documents, sort_keys=False, width=100), end="")


def _check_users(named: dict[str, list[str] | None]) -> None:
    """A service account by its own name alone would be somebody else, and nobody be let in."""
    for option, users in named.items():
        for user in users or ():
            name = user.removeprefix("system:serviceaccount:")
            of_account = name != user
            if not user or user != user.strip() or (of_account and name.count(":") != 1):
                form = "system:serviceaccount:NAMESPACE:NAME"
                raise BadInputError(option, f"{user!r} is no user; a service account is {form}")


def _webhook(place: str, authority: Path | None) -> dict[str, object]:
    from weft.cluster.admission.webhook import webhook_configuration

    namespace, slash, service = place.partition("/")
    if not (namespace and slash and service) or "/" in service:
        raise BadInputError("--webhook", f"is {place!r}; write NAMESPACE/SERVICE, with --ca-file")
    if authority is None:
        raise BadInputError("--ca-file", "is missing: the API server asks over TLS alone")
    try:
        text = raw_bytes(authority)
    except OSError as error:
        raise BadInputError("--ca-file", f"{authority}: {error.strerror}") from error
    if b"BEGIN CERTIFICATE" not in text:
        raise BadInputError("--ca-file", f"{authority} is no PEM certificate")
    return webhook_configuration(namespace, service, text)


def webhook(
    certificate_file: Annotated[Path, Option(help="PEM; for SERVICE.NAMESPACE.svc.")],
    key_file: Annotated[Path, Option(help="Its key.")],
    scheduler_name: Annotated[
        str, Option(help="The schedulerName that pods get in namespaces that opted in.")
    ] = "weft",
    address: Annotated[str, Option(help="Where to listen.")] = "0.0.0.0",
    port: Annotated[int, Option(min=0, max=65535, help="0: a free one.")] = 9443,
    log_level: logs.Log = logs.LogLevel.INFO,
    log_format: logs.Format = logs.LogFormat.TEXT,
) -> None:
    """Set schedulerName where the API server cannot by itself: before Kubernetes 1.36.

    Answers the API server about pods of namespaces labelled weft.dev/schedule=enabled. While
    nobody answers, pods are created as they are. `weft admission --webhook` prints what the API
    server must know; the chart does both.
    """
    import uvloop

    from weft.host.webhook import WebhookPlace, host

    with logs.daemon(log_format, log_level):
        place = WebhookPlace(address, port, certificate_file, key_file)
        uvloop.run(host(place, scheduler_name))
