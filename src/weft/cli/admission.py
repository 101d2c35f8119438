"""`weft admission`: the policies that the API server applies for Weft."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Option

from weft.cli import logs
from weft.cli.options import MissingOptionError
from weft.files.reading import raw_bytes
from weft.model.errors import BadInputError


class PolicySet(StrEnum):
    """The admission policies to print."""

    schedule = "schedule"
    protect = "protect"


_Users = list[str] | None
_SCHEDULER = Option(
    metavar="USER",
    help="A user that may write which GPUs pods have; may be given several times.  "
    "[default: system:serviceaccount:weft-system:weft-scheduler]",
)
_AGENT = Option(
    metavar="USER",
    help="An agent's user, which may write its own node; may be given several times.  "
    "[default: system:serviceaccount:weft-system:weft-agent]",
)
_PLUGIN = Option(
    metavar="USER",
    help="The user of another system's device plugin or scheduler, to let it write pods and nodes.",
)


def admission(
    only: Annotated[
        PolicySet | None,
        Option(
            help="schedule: sets schedulerName of GPU pods that have none; protect: limits who may "
            "write which GPUs a pod has.  [default: both]"
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
            help="Before Kubernetes 1.36: the Service of `weft webhook`, instead of the policy.",
        ),
    ] = "",
    ca_file: Annotated[
        Path | None, Option(help="The authority of the webhook's certificate, PEM.")
    ] = None,
) -> None:
    """Print the admission policies as YAML, for kubectl apply.

    Pods in namespaces labelled weft.dev/schedule=enabled that request GPUs and name no scheduler
    get Weft's schedulerName (MutatingAdmissionPolicy, Kubernetes 1.36). Only schedulers and agents
    may write annotations that say which GPUs a pod has (ValidatingAdmissionPolicy, 1.30).
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
    """Refuse empty user names, and service accounts without prefix or namespace, as no such user
    exists."""
    for option, users in named.items():
        for user in users or ():
            name = user.removeprefix("system:serviceaccount:")
            of_account = name != user
            if not user or user != user.strip() or (of_account and name.count(":") != 1):
                form = "system:serviceaccount:NAMESPACE:NAME"
                raise BadInputError(
                    option, f"{user!r} is not a user name; a service account is {form}"
                )


def _webhook(place: str, authority: Path | None) -> dict[str, object]:
    from weft.cluster.admission.webhook import webhook_configuration

    namespace, slash, service = place.partition("/")
    if not (namespace and slash and service) or "/" in service:
        raise BadInputError("--webhook", f"is {place!r}; write NAMESPACE/SERVICE, with --ca-file")
    if authority is None:
        raise MissingOptionError(
            "--ca-file", "is missing: the API server calls webhooks only over TLS"
        )
    try:
        text = raw_bytes(authority)
    except OSError as error:
        raise BadInputError("--ca-file", f"{authority}: {error.strerror}") from error
    if b"BEGIN CERTIFICATE" not in text:
        raise BadInputError("--ca-file", f"{authority} is not a PEM certificate")
    return webhook_configuration(namespace, service, text)


def webhook(
    certificate_file: Annotated[
        Path, Option(help="The certificate for SERVICE.NAMESPACE.svc, PEM.")
    ],
    key_file: Annotated[Path, Option(help="The certificate's key, PEM.")],
    scheduler_name: Annotated[
        str, Option(help="The schedulerName that pods get in namespaces that opted in.")
    ] = "weft",
    address: Annotated[str, Option(help="The address to listen on.")] = "0.0.0.0",
    port: Annotated[
        int, Option(min=0, max=65535, help="The port to listen on; 0 is any free one.")
    ] = 9443,
    log_level: logs.Log = logs.LogLevel.INFO,
    log_format: logs.Format = logs.LogFormat.TEXT,
) -> None:
    """Set schedulerName by a webhook, where the API server cannot do so by policy (before 1.36).

    Answers the API server about pods in namespaces labelled weft.dev/schedule=enabled. While no
    webhook answers, pods are created unchanged. `weft admission --webhook` prints the configuration
    that the API server needs; the chart installs both.
    """
    import uvloop

    from weft.host.webhook import WebhookPlace, host

    with logs.daemon(log_format, log_level):
        place = WebhookPlace(address, port, certificate_file, key_file)
        uvloop.run(host(place, scheduler_name))
