"""Pseudonyms made with a random key that is not stored, in the same order as the names they
replace.

Order breaks ties between nodes, pods and GPUs, so an anonymised snapshot gives the same
decisions."""

import hashlib
import itertools
import re
import secrets
from collections.abc import Callable, Iterable

_GPU = re.compile(r"\b(GPU|MIG)-[0-9A-Za-z-]+")


class Pseudonyms:
    """Collects every name first, returning it unchanged; after `allot`, returns pseudonyms.

    `words` are returned unchanged; but `name` hashes those that are also in `sorted_names`, since
    the order of these names matters. `uuids` are the GPUs' UUIDs, some of which may have an unusual
    form."""

    def __init__(
        self, words: Iterable[str], sorted_names: Iterable[str], uuids: Iterable[str]
    ) -> None:
        self._words = frozenset(words)
        self._kept = self._words - set(sorted_names)
        self._known: dict[str, dict[str, str]] = {kind: {} for kind in _KINDS}
        others = sorted(
            (uuid for uuid in uuids if not _GPU.fullmatch(uuid) and len(uuid) > 3), key=len
        )
        self._uuids = re.compile("|".join([_GPU.pattern, *map(re.escape, reversed(others))]))
        self._composed: dict[str, tuple[str, ...]] = {}

    def name(self, text: str) -> str:
        """Return the pseudonym of an object, container, key or value."""
        if text in self._composed:
            return "-".join(map(self.name, self._composed[text]))
        return text if text in self._kept else self._of("name", text)

    def word(self, text: str) -> str:
        """Return the pseudonym of a scheduler, kind, namespace or container, unless Weft knows the
        word."""
        return text if text in self._words else self.name(text)

    def uid(self, text: str) -> str:
        """Return the pseudonym of an object's UID."""
        return self._of("uid", text) if text else text

    def composed(self, *parts: str) -> None:
        """Note that the pseudonym of these parts joined by "-" is to be the parts' pseudonyms
        joined by "-"."""
        self._composed["-".join(parts)] = parts
        for part in parts:
            self.name(part)

    def gpus_in(self, text: str) -> str:
        """Return the text with each GPU's UUID replaced by its pseudonym."""
        return self._uuids.sub(lambda match: self._of(_kind_of(match[0]), match[0]), text)

    def gpu(self, uuid: str) -> str:
        """Return the pseudonym of a GPU's UUID of any form."""
        if not uuid or self._uuids.fullmatch(uuid):
            return self.gpus_in(uuid)
        return self._of("gpu", uuid)

    def allot(self) -> None:
        """Assign pseudonyms to all names seen so far."""
        key = secrets.token_bytes(32)
        for kind, known in self._known.items():
            shape = _KINDS[kind]
            digests = {shape(_digest(key, kind, text, 0)) for text in known}
            again = 1
            while len(digests) < len(known):  # two digests collided, which is next to impossible
                digests = {shape(_digest(key, kind, text, again)) for text in known}
                again += 1
            self._known[kind] = dict(zip(sorted(known), sorted(digests), strict=True))

    def _of(self, kind: str, text: str) -> str:
        return self._known[kind].setdefault(text, text)


def _kind_of(uuid: str) -> str:
    return "mig" if uuid.startswith("MIG-") else "gpu"


def _digest(key: bytes, kind: str, text: str, again: int) -> str:
    body = f"{kind}/{again}/{text}".encode(errors="surrogatepass")
    return hashlib.blake2b(body, key=key, digest_size=16).hexdigest()


def _as_uuid(digest: str) -> str:
    ends = (0, 8, 12, 16, 20, 32)
    return "-".join(digest[a:b] for a, b in itertools.pairwise(ends))


_KINDS: dict[str, Callable[[str], str]] = {
    "name": lambda digest: f"x{digest[:12]}",
    "uid": _as_uuid,
    "gpu": lambda digest: f"GPU-{_as_uuid(digest)}",
    "mig": lambda digest: f"MIG-{_as_uuid(digest)}",
}
"""Function that makes a pseudonym of a digest, for each kind of name."""
