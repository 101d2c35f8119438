"""Selections and watches of a fake API server: who is told which change."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import msgspec

from fakes.api_http import FakeConnection
from fakes.api_store import ApiRefusal, Json, ObjectStore, ResourceKind, StoredWrite

_TERM = re.compile(r"^(!?)([^=!]+?)(?:(!=|==|=)(.*))?$")


class Selection:
    """A namespace and the label and field selectors of a list or watch."""

    def __init__(self, namespace: str, query: dict[str, str]) -> None:
        self.namespace = namespace
        self._labels = _terms(query.get("labelSelector", ""))
        self._fields = _terms(query.get("fieldSelector", ""))
        self.everything = not (namespace or self._labels or self._fields)

    def __contains__(self, stored: Json | None) -> bool:
        """True if this object is selected."""
        if stored is None:
            return False
        meta = stored["metadata"]
        if self.namespace and meta.get("namespace") != self.namespace:
            return False
        labels = meta.get("labels") or {}
        return all(_holds(term, labels.get(term[1])) for term in self._labels) and all(
            _holds(term, _field(stored, term[1]) or "") for term in self._fields
        )


class FakeWatch:
    """One client's watch, fed by the store until it is closed."""

    def __init__(
        self,
        store: ObjectStore,
        kind: ResourceKind,
        chosen: Selection,
        connection: FakeConnection,
        on_close: Callable[["FakeWatch"], None],
        bookmarks: bool,
    ) -> None:
        self.kind = kind
        self.bookmarks = bookmarks
        self._store = store
        self._chosen = chosen
        self._connection = connection
        self._on_close = on_close
        self._timer: asyncio.TimerHandle | None = None
        connection.on_lost = self.close

    def start(self, query: dict[str, str]) -> None:
        """Send what the client has missed, then follow the store."""
        self._connection.begin()
        version = query.get("resourceVersion", "")
        try:
            if version in ("", "0"):
                for stored in self._store.all(self.kind, self._chosen.namespace):
                    if stored in self._chosen:
                        self._send("ADDED", stored)
            else:
                for change in self._store.since(int(version)):
                    self.tell(change)
        except ApiRefusal as refusal:
            self._send("ERROR", refusal.status)
            self.close()
            return
        self._store.listeners.append(self.tell)
        if "timeoutSeconds" in query:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(float(query["timeoutSeconds"]), self.close)

    def tell(self, change: StoredWrite) -> None:
        """Pass a change on, as this selection sees it."""
        if change.kind is not self.kind:
            return
        if self._chosen.everything:
            self._connection.send(change.line)
            return
        before, after = change.old in self._chosen, change.new in self._chosen
        if change.type == "DELETED":
            if before:
                self._send("DELETED", change.new)
        elif after:
            self._send("MODIFIED" if before else "ADDED", change.new)
        elif before:
            last = {**(change.old or {}), "metadata": change.new["metadata"]}
            self._send("DELETED", last)

    def bookmark(self) -> None:
        """Tell how far this watch has come."""
        meta = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        mark = {"kind": self.kind.kind, "apiVersion": self.kind.api_version, "metadata": meta}
        self._send("BOOKMARK", mark)

    def write(self, raw: bytes) -> None:
        """Send bytes as they are: a line that no API server would write."""
        self._connection.send(raw)

    def silence(self) -> None:
        """Say nothing any more, and keep the connection."""
        if self.tell in self._store.listeners:
            self._store.listeners.remove(self.tell)
        if self._timer is not None:
            self._timer.cancel()
        self.bookmarks = False

    def cut(self) -> None:
        """Reset the connection in the middle."""
        self._connection.abort()
        self.close()

    def close(self) -> None:
        """End the stream in good order."""
        if self._timer is not None:
            self._timer.cancel()
        if self.tell in self._store.listeners:
            self._store.listeners.remove(self.tell)
        self._connection.end()
        self._on_close(self)

    def _send(self, event: str, stored: Json) -> None:
        self._connection.send(msgspec.json.encode({"type": event, "object": stored}) + b"\n")


def _terms(text: str) -> list[tuple[bool, str, str, str]]:
    """(negated, name, operator, value) of each term: `a=b`, `a!=b`, `a`, `!a`."""
    terms = []
    for term in filter(None, text.split(",")):
        match = _TERM.match(term.strip())
        if match is None:
            raise ApiRefusal(400, "BadRequest", f"unable to parse requirement: {term}")
        terms.append((bool(match[1]), match[2], match[3] or "", match[4] or ""))
    return terms


def _holds(term: tuple[bool, str, str, str], value: str | None) -> bool:
    negated, _, operator, values = term
    if not operator:
        return (value is None) is negated
    return (value == values) is (operator != "!=")


def _field(value: Any, path: str) -> str | None:
    for name in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value if isinstance(value, str) else None
