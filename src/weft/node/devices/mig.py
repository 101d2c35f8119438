"""Numbers of MIG instances, which NVML does not number across the cards of a machine.

An instance's index says where it is, so that it stays the same while others come and go: instance
7 (its GPU instance), 0 (its compute instance) of card 2 is 3070.
"""


def instance_index(card: int, gpu_instance: int, compute_instance: int = 0) -> int:
    """The index of an instance among all of a machine's GPUs."""
    return 1000 * (card + 1) + 10 * gpu_instance + compute_instance
