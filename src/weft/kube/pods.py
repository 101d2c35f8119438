"""Pods, decoded straight into structs with everything a scheduler must look at.

Field names are Kubernetes' own, camelCase on the wire. What is not listed is skipped. A `Pod` is a
`PodManifest`, so that dialects can read it directly.
"""

from typing import Any

import msgspec

from weft.model.manifest import (
    Api,
    Condition,
    ManifestContainer,
    ManifestResources,
    ObjectMeta,
    PodManifest,
    PodSpec,
    PodStatus,
    Quantities,
)


class SelectorRequirement(Api, frozen=True, gc=False):
    """One term of a selector: `key operator values`."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeSelectorTerm(Api, frozen=True, gc=False):
    """A node must meet all of these requirements; an empty term selects no node."""

    match_expressions: list[SelectorRequirement] | None = None
    match_fields: list[SelectorRequirement] | None = None


class NodeSelector(Api, frozen=True, gc=False):
    """A selector of nodes, of which at least one term must match."""

    node_selector_terms: list[NodeSelectorTerm] = msgspec.field(default_factory=list)


class PreferredTerm(Api, frozen=True, gc=False):
    """A preference with its weight, 1 to 100."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Api, frozen=True, gc=False):
    """affinity.nodeAffinity: what must hold, and what preferably holds, for the node."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[PreferredTerm] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class LabelSelector(Api, frozen=True, gc=False):
    """Selects objects by their labels, which must meet all conditions."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[SelectorRequirement] | None = None


class PodAffinityTerm(Api, frozen=True, gc=False):
    """A term that selects pods, which this pod is to run near to (affinity) or far from
    (anti-affinity)."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class WeightedPodAffinityTerm(Api, frozen=True, gc=False):
    """A preference with its weight, 1 to 100."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Api, frozen=True, gc=False):
    """affinity.podAffinity or podAntiAffinity."""

    required: list[PodAffinityTerm] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[WeightedPodAffinityTerm] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Api, frozen=True, gc=False):
    """spec.affinity."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class KubeToleration(Api, frozen=True, gc=False):
    """One entry of spec.tolerations; an empty operator is `Equal`, empty key or effect is any."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class TopologySpread(Api, frozen=True, gc=False):
    """One entry of spec.topologySpreadConstraints."""

    topology_key: str = ""
    when_unsatisfiable: str = ""
    max_skew: int = 0
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


class ContainerPort(Api, frozen=True, gc=False):
    """A port; only `host_port` (0 for none) matters to a scheduler."""

    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class ResourceClaimUse(Api, frozen=True, gc=False):
    """resources.claims: a claim of the pod that a container uses."""

    name: str = ""


class Resources(ManifestResources, frozen=True, gc=False):
    """resources of a container, or of the whole pod."""

    claims: list[ResourceClaimUse] | None = None


class RestartRule(Api, frozen=True, gc=False):
    """One entry of a container's restartPolicyRules."""

    action: str = ""


class PodContainer(ManifestContainer, frozen=True, gc=False):
    """A container with its ports and restart rules."""

    ports: list[ContainerPort] | None = None
    restart_policy_rules: list[RestartRule] | None = None


class ImageSource(Api, frozen=True, gc=False):
    """A volume's image, whose files are mounted."""

    reference: str = ""


class ClaimSource(Api, frozen=True, gc=False):
    """A volume's persistentVolumeClaim."""

    claim_name: str = ""


class MountedDisk(Api, frozen=True, gc=False):
    """A disk named in the pod itself, without a claim: each kind of disk uses some of these
    fields."""

    pd_name: str = ""
    volume_id: str = msgspec.field(default="", name="volumeID")
    disk_name: str = ""
    iqn: str = ""
    monitors: list[str] | None = None
    pool: str = "rbd"
    image: str = ""
    read_only: bool = False


class Volume(Api, frozen=True, gc=False):
    """One entry of spec.volumes: a claim by name, one made for the pod (`ephemeral`), or an image.

    The other fields are disks named in the pod itself.
    """

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, Any] | None = None
    gce_persistent_disk: MountedDisk | None = None
    aws_elastic_block_store: MountedDisk | None = None
    iscsi: MountedDisk | None = None
    rbd: MountedDisk | None = None
    azure_disk: MountedDisk | None = None
    cinder: MountedDisk | None = None
    image: ImageSource | None = None


class PodResourceClaim(Api, frozen=True, gc=False):
    """One entry of spec.resourceClaims (dynamic resource allocation)."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class SchedulingGate(Api, frozen=True, gc=False):
    """One entry of spec.schedulingGates: the pod is not to be scheduled yet."""

    name: str = ""


class ScheduledSpec(PodSpec, frozen=True, gc=False):
    """spec of a pod, with the fields that decide where it may run."""

    containers: list[PodContainer] = msgspec.field(  # type: ignore[assignment]
        default_factory=list
    )
    init_containers: list[PodContainer] | None = None  # type: ignore[assignment]
    resources: Resources | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[KubeToleration] | None = None
    topology_spread_constraints: list[TopologySpread] | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    volumes: list[Volume] | None = None
    resource_claims: list[PodResourceClaim] | None = None
    runtime_class_name: str | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    termination_grace_period_seconds: int | None = None
    host_network: bool = False
    host_users: bool | None = None


class TimedCondition(Condition, frozen=True, gc=False):
    """A condition of a pod or node, and since when it holds, RFC 3339."""

    last_transition_time: str | None = None


class OwnerReference(Api, frozen=True, gc=False):
    """One entry of metadata.ownerReferences; at most one of them is the `controller`."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    api_version: str = ""


class OwnedMeta(ObjectMeta, frozen=True, gc=False):
    """metadata, with the pod's owners."""

    owner_references: list[OwnerReference] | None = None


class Terminated(Api, frozen=True, gc=False):
    """state.terminated: how a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None
    container_id: str = msgspec.field(default="", name="containerID")


class Waiting(Api, frozen=True, gc=False):
    """state.waiting: why a container does not run, or does not run again."""

    reason: str = ""
    message: str = ""


class ContainerState(Api, frozen=True, gc=False):
    """state or lastState of a container: its end, or why it waits."""

    terminated: Terminated | None = None
    waiting: Waiting | None = None


class ContainerStatus(Api, frozen=True, gc=False):
    """One entry of containerStatuses; `last_state` is the state in which the previous run ended.

    `allocated_resources` are what the node has reserved for the container, `resources` what is in
    force.
    """

    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    allocated_resources: Quantities | None = None
    resources: ManifestResources | None = None


class ExtendedResourceMapping(Api, frozen=True, gc=False):
    """One extended resource of a container that its pod's claim supplies."""

    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class ExtendedResourceClaim(Api, frozen=True, gc=False):
    """status.extendedResourceClaimStatus: the claim that supplies a pod's extended resources."""

    resource_claim_name: str = ""
    request_mappings: list[ExtendedResourceMapping] | None = None


class ScheduledStatus(PodStatus, frozen=True, gc=False):
    """status, with conditions, the states of containers, and resizes."""

    reason: str = ""
    conditions: list[TimedCondition] | None = None
    nominated_node_name: str = ""
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    extended_resource_claim_status: ExtendedResourceClaim | None = None
    allocated_resources: Quantities | None = None
    resources: ManifestResources | None = None


DISRUPTED, PREEMPTED = "DisruptionTarget", "PreemptionByScheduler"
"""Type and reason of the condition of a pod that is preempted."""
ENDED = ("Succeeded", "Failed")
"""Phases of a pod whose containers have all ended."""


class Pod(PodManifest, frozen=True, gc=False):
    """A pod as a scheduler reads it."""

    metadata: OwnedMeta = OwnedMeta()
    spec: ScheduledSpec = ScheduledSpec()
    status: ScheduledStatus = ScheduledStatus()

    @property
    def bound_at(self) -> str:
        """Time of the pod's binding by the API server, RFC 3339, whole seconds; "" if unknown."""
        scheduled = (c for c in self.status.conditions or () if c.type == "PodScheduled")
        return next((c.last_transition_time or "" for c in scheduled if c.status == "True"), "")

    @property
    def ended(self) -> bool:
        """True if all containers have ended: only then, or when the pod is gone, is its GPU
        free."""
        return self.status.phase in ENDED
