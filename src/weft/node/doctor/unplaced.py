"""Checks for pods that another scheduler bound to a node where Weft's agent delivers.

The node advertises the resources, so any scheduler may put such a pod there; which GPU it has then
nobody says, and the agent lets no container of it start.
"""

from weft.dialects.delivery import derived_record
from weft.dialects.dialect import DialectSettings
from weft.dialects.inventory import inventory
from weft.kube.pods import Pod
from weft.model import BadInputError, Node
from weft.model.annotations import AGENT, DELIVERY, SCHEDULE, SCHEDULE_ENABLED
from weft.node.agent.node_pods import DEFAULT_SCHEDULER, what_it_asks
from weft.node.doctor.cluster import ClusterFacts, some
from weft.node.doctor.finding import DoctorFinding, good, wrong

_SETTINGS = DialectSettings()


def bound_by_others(facts: ClusterFacts) -> DoctorFinding:
    """Every pod with a share was placed by somebody who says which GPUs it has."""
    check = "pods bound by others"
    nodes = {
        node.metadata.name: inventory(node)[0]
        for node in facts.gpu_nodes
        if AGENT in (node.metadata.annotations or {})
    }
    found = [
        pod
        for pod in facts.pods
        if (node := nodes.get(pod.spec.node_name)) is not None and _hangs(pod, node)
    ]
    if not found:
        return good(check, "none without a GPU")
    names = [f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in found]
    defaults = [pod for pod in found if pod.spec.scheduler_name in ("", DEFAULT_SCHEDULER)]
    by = sorted({pod.spec.scheduler_name or DEFAULT_SCHEDULER for pod in found})
    mend = "create them again with a schedulerName of Weft's, and without nodeName"
    if defaults:
        place = defaults[0].metadata.namespace
        mend = (
            f"kubectl label namespace {place} {SCHEDULE}={SCHEDULE_ENABLED}, or write "
            "schedulerName: weft into what makes them; then delete them, to be created again"
        )
    text = f"cannot start, for nobody says which GPU they have ({', '.join(by)}): {some(names)}"
    return wrong(check, text, mend)


def _hangs(pod: Pod, node: Node) -> bool:
    """True if its node's agent waits for somebody to say which GPU it has."""
    if pod.status.phase in ("Succeeded", "Failed") or DELIVERY in (pod.metadata.annotations or {}):
        return False
    asks, problem = what_it_asks(pod, _SETTINGS)
    if asks != "share" or problem:
        return False
    try:
        return derived_record(pod, node, _SETTINGS) is None
    except BadInputError:
        return False
