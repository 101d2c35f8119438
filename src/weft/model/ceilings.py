"""Upper limits for what a pod may request or a node may have: one place for these numbers. A
request beyond them, by one container or by all together, is a mistake or malice and is refused when
the pod is read; a bound pod's is clipped to them, and so is what a node reports. A node thus never
has more than a bound pod is charged that asks for more than there can be.

Why no sum leaves 64 bits: CPU, host memory and a GPU's memory and cores are below 2**32 a pod, so
that the pods of a node would have to be more than 2**30. Extended resources are counted in units as
small as a byte; their sums are kept as Python's integers (`LedgerTable.extended_used`). Policies
multiply what is free by a thousand at most, or work in floating point.
"""

MOST_CPU_MILLI = 2**31
"""Two million cores."""
MOST_MEMORY_MIB = 2**31
"""2 PiB of host memory."""
MOST_AMOUNT = 2**52
"""The most of any other resource of a node; 4 PiB where it counts bytes."""
MOST_GPU_MIB = 2**24
"""16 TiB of memory of one GPU."""
MOST_GPU_MILLI = 2**24
"""The most of one GPU's cores, in thousandths, as a placement may tell them."""
MOST_GPUS = 1_024
"""GPUs of a node, MIG instances with them, and those that all of a pod's requests ask for."""
MOST_ASKING = 256
"""Containers of a pod that ask for GPUs of their own. Which GPUs are best for each of them is a
search, and no node has so many that sharing them in more parts made sense."""
MOST_RULES = 2_000
"""Rules on nodes, tolerations and host ports of a pod: each is asked about all nodes."""
MOST_LETTERS = 253
"""The longest name, as Kubernetes' own; an annotation may be of 256 kB."""
LEAST_PRIORITY, MOST_PRIORITY = -(2**31), 2**31 - 1
"""Kubernetes keeps spec.priority in 32 bits."""


def within_priorities(priority: int) -> int:
    """Return the nearest priority that a pod can have."""
    return max(LEAST_PRIORITY, min(priority, MOST_PRIORITY))
