"""Labels namespaces so that Weft schedules their pods, and undoes it.

The previous labels are first recorded in a ConfigMap, so that they are known even if the command is
interrupted. A label that was changed by others since is never overwritten."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from weft.cluster.adoption.plan import NAMESPACES, SYSTEM_NAMESPACE
from weft.kube.client import MERGE_PATCH, ApiClient
from weft.kube.codec import CONFIG_MAPS, MetaOnly
from weft.kube.configmap import OwnConfigMap
from weft.kube.errors import ConflictError, NotFoundError
from weft.model import BadInputError, ObjectMeta
from weft.model.annotations import SCHEDULE, SCHEDULE_ENABLED

RECORD = "weft-adoption"
_ATTEMPTS = 4


class OptInRecord(msgspec.Struct, frozen=True):
    """State of a namespace before its opt-in label was set: its UID, the label's value (None: not
    set), and if it had any labels; `wrote` is the value that was then written."""

    uid: str
    before: str | None
    labelled: bool
    wrote: str = SCHEDULE_ENABLED


class OptInChange(NamedTuple):
    """Outcome for a namespace, in words; `done` is False if its label could not be set or
    restored."""

    namespace: str
    text: str
    done: bool = True


async def opt_in(client: ApiClient, names: Iterable[str]) -> list[OptInChange]:
    """Record the namespaces' labels, then label them; return the outcome for each namespace. Can be
    repeated after an interruption."""
    known = await _records(client)
    namespaces = {name: await client.get(NAMESPACES, "", name) for name in names}
    missing = {
        name: _record(namespace.metadata)
        for name, namespace in namespaces.items()
        if name not in known or known[name].uid != namespace.metadata.uid  # recreated since
    }
    if missing:
        texts = {name: msgspec.json.encode(record).decode() for name, record in missing.items()}
        await known.config_map.write(texts)
    records = {**known, **missing}
    changes = []
    for name, namespace in namespaces.items():
        done = await _set(client, name, records[name], SCHEDULE_ENABLED, namespace)
        text = f"labelled {SCHEDULE}={SCHEDULE_ENABLED}" if done else _CHANGED
        changes.append(OptInChange(name, text, done))
    return changes


async def undo(client: ApiClient, *, write: bool = True) -> list[OptInChange]:
    """Restore every recorded namespace, delete the record, and return the outcomes; with
    `write=False` only report."""
    records = await _records(client)
    changes = [await _put_back(client, name, records[name], write) for name in sorted(records)]
    if write and records.there:
        await client.delete(CONFIG_MAPS, SYSTEM_NAMESPACE, RECORD)
    return changes


_CHANGED = "left unchanged: its label was changed by someone else since"


async def _put_back(client: ApiClient, name: str, record: OptInRecord, write: bool) -> OptInChange:
    try:
        namespace = await client.get(NAMESPACES, "", name)
    except NotFoundError:
        return OptInChange(name, "is gone", done=False)
    if namespace.metadata.uid != record.uid:
        return OptInChange(
            name, "left unchanged: it was deleted and created again since", done=False
        )
    value = (namespace.metadata.labels or {}).get(SCHEDULE)
    if value == record.before:
        return OptInChange(name, "already has its previous label")
    if value != record.wrote or (
        write and not await _set(client, name, record, record.before, namespace)
    ):
        return OptInChange(name, _CHANGED, done=False)
    return OptInChange(name, f"label {SCHEDULE} restored")


class _Records(dict[str, OptInRecord]):
    """Records by namespace, with their ConfigMap; `there` is True if the ConfigMap has any."""

    def __init__(self, config_map: OwnConfigMap, texts: dict[str, str]) -> None:
        self.config_map, self.there = config_map, bool(texts)
        for name, text in texts.items():
            try:
                self[name] = msgspec.json.decode(text, type=OptInRecord)
            except msgspec.DecodeError as error:
                where = f"configmap {SYSTEM_NAMESPACE}/{RECORD}: data[{name}]"
                problem = f"{error}; correct it, or remove the key and label the namespace by hand"
                raise BadInputError(where, problem) from error


async def _records(client: ApiClient) -> _Records:
    config_map = OwnConfigMap(client, SYSTEM_NAMESPACE, RECORD)
    return _Records(config_map, await config_map.read())


def _record(meta: ObjectMeta) -> OptInRecord:
    labels = meta.labels or {}
    return OptInRecord(meta.uid, labels.get(SCHEDULE), meta.labels is not None)


async def _set(
    client: ApiClient, name: str, record: OptInRecord, value: str | None, namespace: MetaOnly
) -> bool:
    """Set the namespace's label to `value` (None: remove the label), unless others changed the
    label or recreated the namespace; return True if the label has this value now."""
    for _ in range(_ATTEMPTS):
        meta = namespace.metadata
        labels = dict(meta.labels or {})
        now = labels.get(SCHEDULE)
        if meta.uid != record.uid or now not in (record.before, record.wrote):
            return False
        if now == value:
            return True
        labels.pop(SCHEDULE, None)
        bare = value is None and not labels and not record.labelled
        change = {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "labels": None if bare else {SCHEDULE: value},
        }
        body = msgspec.json.encode({"metadata": change})
        try:
            path = NAMESPACES.of("", name)
            await client.call("PATCH", path, body, content_type=MERGE_PATCH)
        except ConflictError:
            namespace = await client.get(NAMESPACES, "", name)
            continue
        return True
    return False
