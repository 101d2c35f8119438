"""A gang: the group of pods that get places together, or none of them does."""

import msgspec


class Gang(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A pod's group, as its pod or a group object says.

    `system` is whose words named it ("kubernetes", "scheduler-plugins", "volcano", "koordinator",
    "owner"), `namespace` and `name` its own. `least` pods of it must have places before any is
    bound; 0: how many is unknown yet (its object is missing), and its pods wait. `created_ns` is
    when it was made, nanoseconds since 1970, 0 if unknown: its place in the queue. `topology_key`
    is the node label of which all its pods must be in one value, "" for anywhere. `task` is the
    pod's own part in it, `least_by_task` (sorted) how many pods of a task are needed (Volcano says
    it as minTaskMember). `ends_as_one`: where one of its pods is preempted, all are (its disruption
    mode).
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
