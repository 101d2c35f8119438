"""Converts extender protocol v1 from bytes to values, and values to bytes, without I/O.

Go's types have no JSON tags: keys are written capitalised, and read in any case as Go's decoder
does (kube-scheduler before 1.17 sends them in lower case). Go's nil is `null`. Nodes that were sent
in full are returned as the same bytes."""

from collections import deque
from typing import TypeVar

import msgspec

from weft.kube.pods import Pod
from weft.model import BadInputError, ObjectMeta
from weft.model.manifest import Api

MOST_NODES = 100_000
"""Maximum number of nodes of one request. Kubernetes supports 5,000; more only cost memory."""
_LONGEST_TEXT = 300

T = TypeVar("T")
Fields = dict[str, msgspec.Raw]


class ExtenderArgs(msgspec.Struct, frozen=True, gc=False):
    """Arguments of filter and prioritize. `nodes` has the JSON by name if whole nodes were sent,
    otherwise it is None.

    `raw_pod` and `raw_names` are the JSON as received; if `raw_names` is `null` and `nodes` None,
    the caller sent neither list."""

    pod: Pod
    names: list[str]
    nodes: dict[str, msgspec.Raw] | None = None
    raw_pod: bytes = b""
    raw_names: bytes = b""

    @property
    def has_nodes(self) -> bool:
        """True if the caller sent either list, empty or not."""
        return self.nodes is not None or self.raw_names != _NULL_BYTES


class BindArgs(msgspec.Struct, frozen=True, gc=False):
    """Arguments of bind: a pod, and the node to bind it to."""

    name: str
    namespace: str
    uid: str
    node: str


class Victims(msgspec.Struct, frozen=True, gc=False):
    """Pods (by UID) that kube-scheduler would preempt on one node."""

    uids: list[str]
    pdb_violations: int = 0


class PreemptArgs(msgspec.Struct, frozen=True, gc=False):
    """Arguments of preempt: the pod, and by node the victims that kube-scheduler would preempt for
    it."""

    pod: Pod
    raw_pod: bytes
    victims: dict[str, Victims]


class FilterAnswer(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    """Go's ExtenderFilterResult: node names if names were sent, whole nodes if nodes were."""

    nodes: "NodeList | None" = None
    node_names: msgspec.Raw | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class NodeList(msgspec.Struct, frozen=True, gc=False):
    """Go's v1.NodeList; its items are passed through."""

    items: list[msgspec.Raw]
    metadata: dict[str, str] = {}


class HostPriority(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    """Score of one node, an integer: a float makes kube-scheduler reject the whole answer."""

    host: str
    score: int


class MetaPod(msgspec.Struct, frozen=True, gc=False):
    """UID of one victim."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True, gc=False):
    """Victims on one node."""

    pods: list[MetaPod] = msgspec.field(name="Pods")
    pdb_violations: int = msgspec.field(name="NumPDBViolations")


class PreemptAnswer(msgspec.Struct, frozen=True, gc=False):
    """Go's ExtenderPreemptionResult: always victims by UID, whichever form was sent."""

    victims: dict[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims")


class ErrorAnswer(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    """Go's ExtenderBindingResult, also used for errors of requests whose result has no error
    field."""

    error: str = ""


class _Named(Api, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()


encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(Fields)
_pod = msgspec.json.Decoder(Pod)
_names = msgspec.json.Decoder(list[str] | None)
_raws = msgspec.json.Decoder(list[msgspec.Raw] | None)
_named = msgspec.json.Decoder(_Named)
_text = msgspec.json.Decoder(str | None)
_number = msgspec.json.Decoder(int | None)
_NULL_BYTES = b"null"
_NULL = msgspec.Raw(_NULL_BYTES)


class ArgsReader:
    """Reads ExtenderArgs. For a list of names equal to a recent one, received or answered, it
    returns the same list object.

    prioritize asks about the nodes that filter returned: thousands of names then need neither
    decoding nor lookups (`questions.RowLookup`)."""

    def __init__(self, lists: int = 4) -> None:
        self._known: deque[tuple[bytes, list[str]]] = deque(maxlen=lists)

    def read(self, body: bytes) -> ExtenderArgs:
        """Decode the arguments; `BadInputError` if the body is invalid."""
        fields = _fold(body, "the request")
        pod, raw_pod = _read_pod(fields)
        whole = fields.get("nodes", _NULL)
        if whole == _NULL:
            raw = bytes(fields.get("nodenames", _NULL))
            return ExtenderArgs(pod, self._read_names(raw), None, raw_pod, raw)
        items = _read(_raws, _fold(whole, "Nodes").get("items", _NULL), "Nodes.items") or []
        _not_too_many(len(items), "Nodes.items")
        nodes = {_read(_named, item, "Nodes.items").metadata.name: item for item in items}
        return ExtenderArgs(pod, [*nodes], nodes, raw_pod)

    def _read_names(self, raw: bytes) -> list[str]:
        for known, names in self._known:
            if raw == known:
                return names
        names = _read(_names, raw, "NodeNames") or []
        _not_too_many(len(names), "NodeNames")
        self._known.appendleft((raw, names))
        return names

    def answer(self, args: ExtenderArgs, fits: list[str]) -> msgspec.Raw:
        """Encode the names that fit as JSON, and remember them for the next request."""
        if fits is args.names and fits:
            return msgspec.Raw(args.raw_names)
        raw = encode(fits)
        self._known.appendleft((raw, fits))
        return msgspec.Raw(raw)


def read_bind(body: bytes) -> BindArgs:
    """Decode ExtenderBindingArgs; every field is required."""
    fields = _fold(body, "the request")
    fields_by_name = {
        key: _read(_text, fields.get(key.lower(), _NULL), key) or ""
        for key in ("PodName", "PodNamespace", "PodUID", "Node")
    }
    missing = [key for key, value in fields_by_name.items() if not value]
    if missing:
        raise BadInputError("the request", f"has no {', '.join(missing)}")
    return BindArgs(*fields_by_name.values())


def read_preempt(body: bytes) -> PreemptArgs:
    """Decode ExtenderPreemptionArgs, with whole victims or victims by UID."""
    fields = _fold(body, "the request")
    pod, raw_pod = _read_pod(fields)
    by_uid = fields.get("nodenametometavictims", _NULL)
    in_full = by_uid == _NULL
    victims_by_node = fields.get("nodenametovictims", _NULL) if in_full else by_uid
    nodes = {} if victims_by_node == _NULL else _read(_fields, victims_by_node, "victims")
    _not_too_many(len(nodes), "victims")
    victims = {name: _read_victims(raw, in_full) for name, raw in nodes.items()}
    return PreemptArgs(pod, raw_pod, victims)


def _read_victims(raw: msgspec.Raw, in_full: bool) -> Victims:
    fields = _fold(raw, "victims") if raw != _NULL else {}
    pods = _read(_raws, fields.get("pods", _NULL), "victims' Pods") or []
    if in_full:
        uids = [_read(_named, pod, "victims' Pods").metadata.uid for pod in pods]
    else:
        raw_uids = [_fold(pod, "victims' Pods").get("uid", _NULL) for pod in pods]
        uids = [_read(_text, uid, "victims' UID") or "" for uid in raw_uids]
    return Victims(uids, _read(_number, fields.get("numpdbviolations", _NULL), "victims") or 0)


def _read_pod(fields: Fields) -> tuple[Pod, bytes]:
    """Return the pod, and its JSON as received."""
    raw = fields.get("pod", _NULL)
    if raw == _NULL:
        raise BadInputError("the request", "has no Pod")
    return _read(_pod, raw, "Pod"), bytes(raw)


def _not_too_many(nodes: int, where: str) -> None:
    if nodes > MOST_NODES:
        raise BadInputError(where, f"{nodes:,} nodes; {MOST_NODES:,} are the most in one request")


def _fold(raw: bytes | msgspec.Raw, where: str) -> Fields:
    """Return an object's members with names in lower case; of equal names the last wins."""
    return {key.lower(): value for key, value in _read(_fields, raw, where).items()}


def _read(decoder: "msgspec.json.Decoder[T]", raw: bytes | msgspec.Raw, where: str) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadInputError(where, str(error)[:_LONGEST_TEXT]) from error
