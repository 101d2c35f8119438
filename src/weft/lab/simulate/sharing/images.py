"""Container images on nodes: pulled when a container first needs one, and kept from then on.

A node pulls one image after another, which is the kubelet's default."""


class NodeImages:
    """Images on nodes, pulled at `mib_per_s`; 0: every node has all of them."""

    def __init__(self, mib_per_s: float) -> None:
        self._mib_per_s = mib_per_s
        self._ready_ns: dict[tuple[str, str], int] = {}
        self._busy_until_ns: dict[str, int] = {}

    def wait_ns(self, node: str, image: str, image_mib: int, now_ns: int) -> int:
        """Return how long a container that starts now waits for its image."""
        if not self._mib_per_s or not image_mib:
            return 0
        ready_ns = self._ready_ns.get((node, image))
        if ready_ns is None:
            begins_ns = max(now_ns, self._busy_until_ns.get(node, 0))
            ready_ns = begins_ns + round(image_mib / self._mib_per_s * 1_000_000_000)
            self._ready_ns[node, image] = self._busy_until_ns[node] = ready_ns
        return max(0, ready_ns - now_ns)
