"""Dynamic resource allocation: devices in ResourceSlices, and the claims that hold some of them.

Group `resource.k8s.io/v1`, in Kubernetes 1.34 and later. Field names are Kubernetes' own. Of a
claim only the allocation and the device classes are read: which devices to allocate is decided by
the scheduler of the claim's pod.
"""

import msgspec

from weft.kube.codec import Resource
from weft.model.manifest import Api, ObjectMeta

GROUP = "resource.k8s.io"
API_PATH = f"/apis/{GROUP}/v1"


class DeviceAttribute(Api, frozen=True, gc=False):
    """A device's attribute: one of these fields has a value. Of attributes that are lists, only
    those of whole numbers are read: NUMA nodes, the device's own first."""

    string: str | None = None
    int_: int | None = msgspec.field(default=None, name="int")
    ints: list[int] | None = None
    bool_: bool | None = msgspec.field(default=None, name="bool")
    version: str | None = None


class DeviceCapacity(Api, frozen=True, gc=False):
    """An amount that a device has, a quantity."""

    value: str | int | float = 0


class CountersUse(Api, frozen=True, gc=False):
    """One entry of consumesCounters: the set of counters from which a device takes amounts."""

    counter_set: str = ""


class DeviceTaint(Api, frozen=True, gc=False):
    """A reason that keeps claims off a device; a taint with an unknown effect is ignored."""

    key: str = ""
    value: str = ""
    effect: str = ""


class SliceDevice(Api, frozen=True, gc=False):
    """One device of a slice. `node_name` is set only if the slice itself names no node."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    consumes_counters: list[CountersUse] | None = None
    node_name: str = ""
    allow_multiple_allocations: bool | None = None
    taints: list[DeviceTaint] | None = None


class ResourcePool(Api, frozen=True, gc=False):
    """The pool of a slice, its generation, and the number of slices of a complete generation."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Api, frozen=True, gc=False):
    """spec of a slice: devices, or counters that devices of other slices of the pool consume."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str = ""
    devices: list[SliceDevice] | None = None


class ResourceSlice(Api, frozen=True, gc=False):
    """A part of the devices that a driver offers."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec = ResourceSliceSpec()


class ClaimMeta(ObjectMeta, frozen=True, gc=False):
    """metadata of a claim. Tens of thousands of claims are kept, so fields that Weft does not read
    get a name that no API server sends, and are never decoded."""

    generate_name: str = msgspec.field(default="", name="-generateName")
    labels: dict[str, str] | None = msgspec.field(default=None, name="-labels")
    annotations: dict[str, str] | None = msgspec.field(default=None, name="-annotations")


class AllocatedDevice(Api, frozen=True, gc=False):
    """One entry of status.allocation.devices.results. `consumed_capacity` is there only on devices
    that several claims may share. A claim with admin access only monitors, and holds nothing."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    consumed_capacity: dict[str, str | int | float] | None = None


class AllocatedDevices(Api, frozen=True, gc=False):
    """status.allocation.devices."""

    results: tuple[AllocatedDevice, ...] | None = None


class NodeField(Api, frozen=True, gc=False):
    """One requirement of matchFields: devices of one node require the node's `metadata.name`."""

    key: str = ""
    values: tuple[str, ...] | None = None


class NodeFields(Api, frozen=True, gc=False):
    """One term of a claim's node selector."""

    match_fields: tuple[NodeField, ...] | None = None


class ClaimNodes(Api, frozen=True, gc=False):
    """The nodes from which a claim's devices can be used, if the allocation names nodes."""

    node_selector_terms: tuple[NodeFields, ...] | None = None


class ClaimAllocation(Api, frozen=True, gc=False):
    """status.allocation, set as long as the claim holds its devices."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: ClaimNodes | None = None
    allocation_timestamp: str | None = None


class ClaimConsumer(Api, frozen=True, gc=False):
    """status.reservedFor: a user of the claim; a pod if `resource` is pods."""

    resource: str = ""
    uid: str = ""


class ResourceClaimStatus(Api, frozen=True, gc=False):
    """status of a claim."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] | None = None


class ExactRequest(Api, frozen=True, gc=False):
    """spec.devices.requests[].exactly, and an entry of firstAvailable (which has a name)."""

    name: str = ""
    device_class_name: str = ""


class ClaimRequest(Api, frozen=True, gc=False):
    """spec.devices.requests[]: devices of one class, or of the first of several classes that has
    any."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: tuple[ExactRequest, ...] | None = None


class ClaimDevices(Api, frozen=True, gc=False):
    """spec.devices."""

    requests: tuple[ClaimRequest, ...] | None = None


class ResourceClaimSpec(Api, frozen=True, gc=False):
    """spec of a claim: only the classes of its devices."""

    devices: ClaimDevices = ClaimDevices()


class ResourceClaim(Api, frozen=True, gc=False):
    """A claim for devices."""

    metadata: ClaimMeta = ClaimMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class DeviceClassSpec(Api, frozen=True, gc=False):
    """spec of a class: pods that request this extended resource get a ResourceClaim for a device of
    the class, unless a device plugin offers the resource."""

    extended_resource_name: str = ""


class DeviceClass(Api, frozen=True, gc=False):
    """A class of devices, which claims request by its name."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()


RESOURCE_SLICES = Resource(API_PATH, "resourceslices", ResourceSlice)
RESOURCE_CLAIMS = Resource(API_PATH, "resourceclaims", ResourceClaim)
DEVICE_CLASSES = Resource(API_PATH, "deviceclasses", DeviceClass)
WATCHED = (RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS)
