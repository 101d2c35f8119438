"""Upper limits for what a pod may request or a node may have: one place for these numbers. A
request beyond these limits, by one container or by all together, is a mistake or malice and is
refused when the pod is read; a bound pod's request is clipped to them, and so are a node's reported
amounts. So a bound pod that requests more than any node can have is charged at least all that a
node has.

Why no sum leaves 64 bits: CPU, host memory and a GPU's memory and cores are below 2**32 a pod, so a
sum needs more than 2**30 pods on a node to overflow. Extended resources are counted in units as
small as a byte; their sums are kept as Python's integers (`LedgerTable.extended_used`). Policies
multiply what is free by a thousand at most, or work in floating point.
"""

MOST_CPU_MILLI = 2**31
"""Most CPU of a node, in thousandths of a core: two million cores."""
MOST_MEMORY_MIB = 2**31
"""Most host memory of a node: 2 PiB."""
MOST_AMOUNT = 2**52
"""Most of any other resource of a node; 4 PiB if it counts bytes."""
MOST_GPU_MIB = 2**24
"""Most memory of one GPU: 16 TiB."""
MOST_GPU_MILLI = 2**24
"""Most cores of one GPU in a placement, in thousandths."""
MOST_GPUS = 1_024
"""Most GPUs of a node, including MIG instances, and most that one pod may request in all."""
MOST_ASKING = 256
"""Most containers of a pod with GPU requests of their own. Finding GPUs for them is a search, and
no node has enough GPUs for more."""
MOST_RULES = 2_000
"""Most rules on nodes, tolerations and host ports of a pod: each is evaluated on all nodes."""
MOST_GANG_PODS = 2_048
"""Most pods that are placed together, unless `queue.gangPods` says otherwise. On 10,000 nodes of 8
GPUs that takes a second or two, in which nothing else is done, and the lease is not renewed."""
MOST_LETTERS = 253
"""Most characters of an accepted name, as in Kubernetes; an annotation as a whole may have 256
kB."""
LEAST_PRIORITY, MOST_PRIORITY = -(2**31), 2**31 - 1
"""Limits of a pod's priority: Kubernetes keeps spec.priority in 32 bits."""


def within_priorities(priority: int) -> int:
    """Return the nearest priority that a pod can have."""
    return max(LEAST_PRIORITY, min(priority, MOST_PRIORITY))
