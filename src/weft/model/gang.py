"""A gang: a group of pods that get places together or not at all."""

import msgspec


class Gang(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A pod's group, as the pod or a group object describes it.

    `system` is the system in whose form the pod names the group ("kubernetes", "scheduler-plugins",
    "volcano", "koordinator", "owner"), `namespace` and `name` are the group's. `least` of its pods
    must have places before any is bound; 0: unknown yet (its object is missing), and its pods stay
    pending. `created_ns` is when the group was created, nanoseconds since 1970, 0 if unknown; it
    decides the group's place in the queue. `topology_key` is a node label that must have one value
    for all its pods, "" for none. `task` is the pod's role in the group, `least_by_task` (sorted)
    how many pods of a task are needed (Volcano's minTaskMember). `ends_as_one`: all its pods are
    preempted together (its disruption mode).
    """

    system: str
    namespace: str
    name: str
    least: int = 0
    created_ns: int = 0
    topology_key: str = ""
    task: str = ""
    least_by_task: tuple[tuple[str, int], ...] = ()
    ends_as_one: bool = False

    @property
    def key(self) -> str:
        """Return the key of a group; equal names in two systems are two groups."""
        return f"{self.system}:{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
