"""Indexes of MIG instances, which NVML does not number across the cards of a machine.

An instance's index encodes its position, so that it stays the same while others are added or
removed: GPU instance 7, compute instance 0 of card 2 has index 3070.
"""


def instance_index(card: int, gpu_instance: int, compute_instance: int = 0) -> int:
    """Return the index of an instance among all of a machine's GPUs."""
    return 1000 * (card + 1) + 10 * gpu_instance + compute_instance
