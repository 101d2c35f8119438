"""Stores large snapshots of signals next to a decisions file: blobs named by their SHA-256, in
FILE.signals/.

A blob holds only the changes since the previous snapshot, so that idle GPUs cost nothing: the
values' bits XOR the previous ones, regrouped so that all first bytes come first, then all second
bytes, and so on, which compresses well. The first snapshot, and each one with other GPUs or columns
than the one before, is written in full. Reading restores every bit.

  a snapshot ──SnapshotPacker──▶ blob, written before ──▶ the line that names it
  a line ──▶ blob, its hash checked ──Unpacker──▶ the snapshot"""

import hashlib
import re
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from weft.core.framework.signals import SignalsSnapshot
from weft.files.reading import inflate, raw_bytes
from weft.files.writing import write_whole

SUFFIX = ".signals"
_NAME = re.compile(r"[0-9a-f]{64}")
_CUT_OFF = re.compile(r"\.[0-9a-f]{64}\.(\d+|part)")  # named by `files.writing.replacing`
_LEVEL = 1  # of zlib: 9 takes ten times as long for a few percent
_ARRAYS = {"values": 8, "freshness": 1}


class SideError(Exception):
    """Raised if a blob is missing or does not match its name; the message names the blob."""


class SignalsKept(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Replaces a `SignalsChanged` event in the file: `blob` is the SHA-256 of the snapshot's
    changes."""

    version: int
    at_ns: int
    blob: str


class SnapshotBlob(msgspec.Struct, frozen=True):
    """Changes of a snapshot since snapshot version `follows`, or the whole snapshot if that is 0.

    `arrays` hold the changed bits of values and ages; `maps` the new and changed entries of the
    snapshot's dictionaries by field, `gone` their removed keys; `plain` every other field."""

    follows: int
    arrays: dict[str, bytes]
    maps: dict[str, dict[str, Any]]
    gone: dict[str, list[str]]
    plain: dict[str, Any]


_NOTHING = SignalsSnapshot(0, 0)
_MAPS = [
    name for name in SignalsSnapshot.__struct_fields__ if isinstance(getattr(_NOTHING, name), dict)
]
_PLAIN = [
    name
    for name in SignalsSnapshot.__struct_fields__
    if name not in {"version", "at_ns", *_MAPS, *_ARRAYS}
]
_LAYOUT = ("gpus", "columns")


class SnapshotPacker:
    """Makes the blobs of one file's snapshots, in order."""

    def __init__(self) -> None:
        self._before = _NOTHING
        self._encoder = msgspec.msgpack.Encoder()

    def pack(self, now: SignalsSnapshot) -> tuple[SignalsKept, bytes]:
        """Return the event to write into the file, and the blob's bytes."""
        before = self._before
        same_layout = all(getattr(now, name) == getattr(before, name) for name in _LAYOUT)
        before = self._before = before if same_layout else _NOTHING
        same = {name: getattr(before, name) for name in _MAPS}
        maps = {name: getattr(now, name) for name in _MAPS}
        blob = SnapshotBlob(
            before.version,
            {
                name: _xor(getattr(now, name), getattr(before, name), size)
                for name, size in _ARRAYS.items()
            },
            {
                name: {key: value for key, value in new.items() if same[name].get(key) != value}
                for name, new in maps.items()
            },
            {name: [key for key in same[name] if key not in new] for name, new in maps.items()},
            {name: getattr(now, name) for name in _PLAIN if not (same_layout and name in _LAYOUT)},
        )
        self._before = now
        packed = zlib.compress(self._encoder.encode(blob), _LEVEL)
        return SignalsKept(now.version, now.at_ns, hashlib.sha256(packed).hexdigest()), packed


class Unpacker:
    """Restores the snapshots from one file's blobs, in order."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._before = folder, _NOTHING

    def unpack(self, signals: SignalsKept) -> SignalsSnapshot:
        """Return the snapshot. Raises `SideError` if its blob is missing or damaged."""
        path = self._folder / signals.blob
        if not _NAME.fullmatch(signals.blob):
            raise SideError(f"{signals.blob!r} is not a blob name")
        try:
            packed = raw_bytes(path)
        except OSError as error:
            raise SideError(f"blob {path}: {error.strerror}") from None
        if hashlib.sha256(packed).hexdigest() != signals.blob:
            raise SideError(f"blob {path} does not match its name: it was changed or truncated")
        try:
            blob = msgspec.msgpack.decode(inflate(packed), type=SnapshotBlob)
            self._before = self._joined(signals, blob)
        except (zlib.error, msgspec.DecodeError, ValueError, KeyError, TypeError) as error:
            raise SideError(f"blob {path} has an unknown format: {error}") from None
        return self._before

    def _joined(self, kept_signals: SignalsKept, blob: SnapshotBlob) -> SignalsSnapshot:
        before = self._before if blob.follows else _NOTHING
        if blob.follows != before.version:
            raise ValueError(f"it follows version {blob.follows}, not {before.version}")
        fields: dict[str, Any] = {name: getattr(before, name) for name in _LAYOUT}
        fields |= blob.plain | {"version": kept_signals.version, "at_ns": kept_signals.at_ns}
        for name, size in _ARRAYS.items():
            fields[name] = _unxor(blob.arrays[name], getattr(before, name), size)
        for name in _MAPS:
            columns = dict(getattr(before, name))
            for key in blob.gone[name]:
                del columns[key]
            fields[name] = columns | blob.maps[name]
        return msgspec.convert(fields, SignalsSnapshot)


def _xor(now: bytes, before: bytes, size: int) -> bytes:
    """XOR two arrays, and group the bytes by their position within a value of `size` bytes."""
    new = np.frombuffer(now, np.uint8)
    old = np.frombuffer(before, np.uint8) if before else np.zeros(len(new), np.uint8)
    return (new ^ old).reshape(-1, size).T.tobytes()


def _unxor(bits: bytes, before: bytes, size: int) -> bytes:
    changed = np.frombuffer(bits, np.uint8).reshape(size, -1).T.reshape(-1)
    old = np.frombuffer(before, np.uint8) if before else np.zeros(len(changed), np.uint8)
    return (changed ^ old).tobytes()


# --- the folder ----------


def side_of(path: Path) -> Path:
    """Return the blob folder of a decisions file; gzipping the file does not change it."""
    name = path.name.removesuffix(".gz") if path.name.endswith(".gz") else path.name
    return path.with_name(name + SUFFIX)


def keep(folder: Path, name: str, packed: bytes) -> None:
    """Write a blob completely or not at all. Raises `OSError` if the write fails."""
    folder.mkdir(exist_ok=True)
    write_whole(folder / name, packed)


def clear(folder: Path) -> None:
    """Remove a folder of blobs if it exists. Raises `OSError` if it contains other files, which
    stay."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if _NAME.fullmatch(path.name) or _CUT_OFF.fullmatch(path.name):
            path.unlink()
    folder.rmdir()
