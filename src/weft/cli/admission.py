"""`weft admission`: the policies that the API server applies for Weft."""

from enum import StrEnum
from typing import Annotated

from typer import Option


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
) -> None:
    """Print the admission policies as YAML, for kubectl apply.

    Pods of namespaces labelled weft.dev/schedule=enabled that ask for GPUs and name no scheduler
    become Weft's (MutatingAdmissionPolicy, Kubernetes 1.36). Annotations that say which GPUs are
    whose may be written by schedulers and agents alone (ValidatingAdmissionPolicy, 1.30).
    """
    import yaml

    from weft.cluster.admission.protection import Writers, protection_policies
    from weft.cluster.admission.scheduling import scheduling_policy

    standard = Writers()
    writers = Writers(
        tuple(scheduler or standard.schedulers),
        tuple(agent or standard.agents),
        tuple(plugin or ()),
    )
    documents = [] if only is PolicySet.protect else scheduling_policy(scheduler_name)
    if only is not PolicySet.schedule:
        documents += protection_policies(writers)
    print(yaml.safe_dump_all(documents, sort_keys=False, width=100), end="")
