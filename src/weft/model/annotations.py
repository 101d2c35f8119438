"""Every `weft.dev/…` annotation, label and resource name, once.

The code that reads a name documents its meaning; docs/reference lists them for users.
"""

# Of pods, whichever system they use.
GPU_MODEL = "weft.dev/gpu-model"
ISOLATION = "weft.dev/isolation"
APPLICATION = "weft.dev/application"
CLASS = "weft.dev/class"
EXPECTED_DURATION = "weft.dev/expected-duration"
SLO_MS = "weft.dev/slo-ms"
SOLO_P99_MS = "weft.dev/solo-p99-ms"
SOLO_RATE = "weft.dev/solo-rate"
TOPOLOGY = "weft.dev/topology"
GANG = "weft.dev/gang"
"""On a pod or namespace: the pods of one owner are a gang."""
GANG_SIZE = "weft.dev/gang-size"
QUEUE = "weft.dev/queue"
"""A label: the team's queue that the pod belongs to."""
MOVABLE = "weft.dev/movable"
"""Says if the pod may be moved to make room for other pods: "true" or "false"."""
RESTART_COST = "weft.dev/restart-cost"
"""The work that is lost when the pod is moved: seconds, or "checkpointed"."""

# Extended resources.
RESOURCES = "weft.dev/"
"""The prefix of all of Weft's own resources."""
GPU_MEMORY = "weft.dev/gpu-memory"
GPU_CORES = "weft.dev/gpu-cores"
GPU_COUNT = "weft.dev/gpu-count"

# Written with a pod's binding, or to make a late binding fail.
PLACEMENT = "weft.dev/placement"
PLACEMENT_COPY = "weft.dev/placement-copy"
"""A copy of the placement, so that an edit of either text is noticed."""
DELIVERY = "weft.dev/delivery"
"""The share of each container, for the node to carry out: see `model/delivery.py`."""
ASKED = "weft.dev/asked"
"""Set on a container in the container runtime, not on a pod: shows that the runtime called the
agent before it created the container."""
REQUIRED_PLUGINS = "required-plugins.noderesource.dev/pod"
"""NRI's annotation: containerd (2.2 and later) creates no container of the pod without these
plugins."""
TERM = "weft.dev/term"
"""The number of the leadership term in which the pod was bound."""
FENCED_VERSION = "weft.dev/fenced-version"
"""Written to a pod whose binding got no answer, so that a late binding fails because the pod's
resourceVersion has changed."""

# Written by agents on nodes.
INVENTORY = "weft.dev/inventory"
GPU_LINKS = "weft.dev/gpu-links"
"""How the GPUs are connected: `model/gpu_links.py`, JSON."""
NODE_MODELS = "weft.dev/gpu-model."
"""Prefix of a node's labels, one for each model of its GPUs; the value is the number of GPUs."""
AGENT = "weft.dev/agent"
"""The agent's version, how shares reach containers, and the isolation modes that it offers:
`model/agent_offer.py`."""
PLUGIN_GPUS = "weft.dev/plugin-gpus"
"""The GPUs that NVIDIA's device plugin gave to pods on the node: `model/plugin_gpus.py`, JSON."""
ADVERTISES = "weft.dev/advertises"
"""The GPU resources in a node's status that Weft's agent on the node sets, separated by commas."""
OUT_OF_MEMORY = "weft.dev/out-of-memory"

# A label of namespaces.
SCHEDULE, SCHEDULE_ENABLED = "weft.dev/schedule", "enabled"
"""Pods of the namespace that request GPUs and name no scheduler are scheduled by Weft."""

# A label of Weft's own pods, and annotations of metrics servers' Services.
ROLE = "weft.dev/role"

# Labels of all objects that an experiment creates on a cluster.
EXPERIMENT = "weft.dev/experiment"
TURN = "weft.dev/experiment-turn"
"""Label on the objects of one run (turn) of an experiment on a cluster: a hash that identifies the
run."""

# Nodes and pods of tests.
HOLLOW = "weft.dev/hollow"
HOLLOW_PROFILE = "weft.dev/hollow-"
"""Prefix of annotations in which a pod of a hollow (simulated) node describes its run."""
