"""Required anti-affinity: it holds in the whole topology domain of its pod's node.

A term with topologyKey `zone` of a pod on a node labelled `zone=a` keeps others off every node with
that label and value; where the pod's node has no such label the term says nothing, as in
kube-scheduler. The term's labelSelector and namespaces are not weighed: the nodes are left to
kube-scheduler, whichever pod asks.
"""

from collections.abc import Collection, Mapping

from weft.kube.structs import KubeNode

Domain = tuple[str, str]


class AntiAffinityDomains:
    """The topology keys of the pods on each node, and the domains that follow from them."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, frozenset[str]]] = {}
        self._domains: frozenset[Domain] = frozenset()
        self.dirty = False

    def keep(self, node: str, uid: str, keys: Collection[str]) -> None:
        """The topologyKeys over which this pod keeps others away; empty for none, or if it went."""
        here = self._keys.get(node, {})
        if frozenset(keys) == here.get(uid, frozenset()):
            return
        self.dirty = True
        if keys:
            self._keys.setdefault(node, here)[uid] = frozenset(keys)
            return
        del here[uid]
        if not here:
            del self._keys[node]

    def relabelled(self, node: str) -> None:
        """The node came, went, or may have other labels."""
        self.dirty = self.dirty or node in self._keys

    def moved(self, nodes: Mapping[str, KubeNode]) -> list[str]:
        """Names of the nodes whose domains are kept since the last call, or are no longer."""
        if not self.dirty:
            return []
        self.dirty = False
        domains: set[tuple[str, str]] = set()
        for name in self._keys.keys() & nodes.keys():
            labels = nodes[name].metadata.labels or {}
            keys = frozenset().union(*self._keys[name].values())
            domains |= {(key, labels[key]) for key in keys & labels.keys()}
        before, self._domains = self._domains, frozenset(domains)
        other = before ^ self._domains
        return [name for name, node in nodes.items() if _in(other, node.metadata.labels or {})]

    def covers(self, labels: Mapping[str, str]) -> bool:
        """True if a node with these labels is in a domain that is kept."""
        return _in(self._domains, labels)


def _in(domains: frozenset[Domain], labels: Mapping[str, str]) -> bool:
    return bool(domains) and not domains.isdisjoint(labels.items())
