"""Checks of the agents' heartbeats: which nodes get no pods, because nobody delivers there now."""

import datetime
from collections.abc import Mapping

from weft.kube.client import ApiClient
from weft.kube.codec import LEASES
from weft.kube.errors import ApiError
from weft.kube.services import everything
from weft.kube.structs import Lease
from weft.model.heartbeat import HEARTBEAT_LATE_S, HEARTBEAT_PREFIX
from weft.node.doctor.cluster import ClusterFacts
from weft.node.doctor.finding import DoctorFinding, advice, good, wrong

_CHECK = "agents' heartbeats"
_DEFAULT_NAMESPACE = "weft-system"
_CLOCKS_S = 46.0
"""Clocks of nodes and of who asks differ: so much more than late is late beyond doubt."""


async def heartbeats(client: ApiClient, facts: ClusterFacts) -> list[DoctorFinding]:
    """One for each node whose agent is silent, or says that it does not deliver."""
    leases: dict[str, Lease] = {}
    for namespace in {pod.metadata.namespace for pod in facts.agents} or {_DEFAULT_NAMESPACE}:
        try:
            found = await everything(client, LEASES, namespace)
        except ApiError as error:
            if error.code != 403:
                raise
            mend = "ask for the right to list leases there (ClusterRole weft-inspect has it)"
            return [advice(_CHECK, f"not known: leases of {namespace} may not be read", mend)]
        leases |= {lease.metadata.name: lease for lease in found}
    names = [node.metadata.name for node in facts.gpu_nodes]
    silent = _silent({name: leases.get(HEARTBEAT_PREFIX + name) for name in names}, client)
    findings = []
    for name, why in silent.items():
        where = f"--field-selector spec.nodeName={name}"
        mend = (
            f"kubectl get pods -A -l app.kubernetes.io/name=weft-agent {where}, and its log, say "
            "why; pods that wait there are placed elsewhere"
        )
        findings.append(wrong(_CHECK, f"{name} gets no pods with shares: {why}", mend))
    known = sum(HEARTBEAT_PREFIX + name in leases for name in names)
    return findings or [good(_CHECK, f"{known} of {len(names)} nodes have one, none is late")]


def _silent(leases: Mapping[str, Lease | None], client: ApiClient) -> dict[str, str]:
    now, silent = client.clock.wall(), {}
    for name, lease in leases.items():
        if lease is None:
            continue  # an older agent, or none: another check says so
        renewed = lease.spec.renew_time or "it began"
        if not lease.spec.holder_identity:
            silent[name] = (
                f"its agent does not deliver since {renewed}: it was ended, or the container "
                "runtime (NRI), or the kubelet, does not ask it"
            )
        elif _age_s(lease, now) > HEARTBEAT_LATE_S + _CLOCKS_S:
            silent[name] = f"its agent is silent since {renewed} (Lease {HEARTBEAT_PREFIX}{name})"
    return silent


def _age_s(lease: Lease, now: datetime.datetime) -> float:
    try:
        return (now - datetime.datetime.fromisoformat(lease.spec.renew_time or "")).total_seconds()
    except (ValueError, TypeError):
        return 0.0
