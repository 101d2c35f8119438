"""Finds the namespaces that the `namespaceSelector` of a pod's affinity term selects by labels.

The engine's rules contain only names of namespaces, so a pod's rules are built again if a
namespace's labels change what a selector selects. If this process has no permission
to read namespaces, the selected ones are unknown.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from weft.kube.codec import MetaOnly
from weft.kube.watch import Change, Deleted
from weft.model import Requirement

Labels = tuple[Requirement, ...]


class Namespaces(Protocol):
    """A source of namespaces by their labels."""

    def selected(self, labels: Labels) -> tuple[str, ...] | None:
        """Return the names of the namespaces whose labels meet all of these requirements; None if
        unknown."""
        ...


class UnnamedNamespaces:
    """Stands for namespaces when reading manifests without a cluster: each selector selects one
    made-up namespace, whose name describes the selector."""

    def selected(self, labels: Labels) -> tuple[str, ...] | None:
        """Return one name that describes the selector, for people; no pod is in such a
        namespace."""
        return (f"namespaces with {', '.join(map(str, labels))}",)


class NamespaceView:
    """The existing namespaces, and which pods have affinity terms that select namespaces by labels.
    `known`: all namespaces were listed once."""

    def __init__(self) -> None:
        self.known = False
        self._labels: dict[str, Mapping[str, str]] = {}
        self._selected: dict[Labels, tuple[str, ...]] = {}  # by selector
        self._users: dict[Labels, dict[str, None]] = {}  # UIDs by selector
        self._selectors: dict[str, tuple[Labels, ...]] = {}  # by UID
        self._moved: dict[str, None] = {}

    @property
    def has_moved(self) -> bool:
        """True if `take_moved` has pods to return."""
        return bool(self._moved)

    def take(self, change: Change[MetaOnly]) -> None:
        """Take in an added, changed or deleted namespace."""
        meta = change.object.metadata  # type: ignore[union-attr]
        self._labels.pop(meta.name, None)
        gone = isinstance(change, Deleted)
        if not gone:
            self._labels[meta.name] = meta.labels or {}
        for selector, names in list(self._selected.items()):
            selects = not gone and _holds(selector, meta.labels or {})
            if selects != (meta.name in names):
                del self._selected[selector]
                self._moved |= self._users[selector]

    def listed(self) -> None:
        """Note that all existing namespaces were taken in, so that they are known from now on."""
        if not self.known:
            self._moved |= dict.fromkeys(self._selectors)
        self.known = True

    def use(self, uid: str, selectors: Iterable[Labels]) -> None:
        """Record that the pod's affinity terms select namespaces by these selectors."""
        own = tuple(dict.fromkeys(selectors))
        if own == self._selectors.get(uid, ()):
            return
        self.release(uid)
        self._selectors[uid] = own
        for selector in own:
            self._users.setdefault(selector, {})[uid] = None

    def release(self, uid: str) -> None:
        """Forget the pod."""
        self._moved.pop(uid, None)
        for selector in self._selectors.pop(uid, ()):
            users = self._users[selector]
            del users[uid]
            if not users:
                del self._users[selector]
                self._selected.pop(selector, None)

    def take_moved(self, most: int) -> list[str]:
        """Return the UIDs of at most `most` pods whose affinity terms now select other namespaces
        than before; each is returned once."""
        return [self._moved.popitem()[0] for _ in range(min(most, len(self._moved)))]

    def selected(self, labels: Labels) -> tuple[str, ...] | None:
        """Return the names of the namespaces whose labels meet all of these requirements, sorted;
        None while the namespaces are not known."""
        if not self.known:
            return None
        names = self._selected.get(labels)
        if names is None:
            names = tuple(sorted(n for n, own in self._labels.items() if _holds(labels, own)))
            if labels in self._users:
                self._selected[labels] = names
        return names


def _holds(selector: Labels, labels: Mapping[str, str]) -> bool:
    return all(requirement.matches(labels) for requirement in selector)
