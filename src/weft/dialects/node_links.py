"""Finds how a node's GPUs are connected.

The first of these sources that a node has counts: Weft's annotation, HAMi's scores, the
configuration, and ResourceSlices if nothing else describes the GPUs. Cards that only the source or
only the node has are left out.
"""

import fnmatch
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from weft.model import BadInputError, Gpu, NodeManifest
from weft.model.annotations import GPU_LINKS
from weft.model.gpu_links import (
    MOST_LINKED,
    SELF,
    GpuLinks,
    checked_links,
    nvlink_generation,
)

HAMI_SCORES = "hami.io/node-nvidia-score"
"""Annotation of HAMi's device plugin, a JSON list: the UUID of each GPU, and its scores with the
others."""
_MOST_LETTERS = 65_536
_HAMI_PCIE = {10: "SYS", 20: "NODE", 30: "PHB", 40: "PXB", 50: "PIX", 60: "PIX"}
_HAMI_NVLINK = 100


class LinksRule(msgspec.Struct, frozen=True):
    """An entry of `gpuLinks:` in the configuration: the nodes, and how their GPUs are connected.

    `nodes` is a shell pattern on the node's name; `labels` must all be on the node. The first entry
    that fits a node counts.
    """

    links: GpuLinks
    nodes: str = "*"
    labels: Mapping[str, str] = {}

    def fits(self, node: NodeManifest) -> bool:
        """Return True if this entry is for the node."""
        labels = node.metadata.labels or {}
        return fnmatch.fnmatchcase(node.metadata.name, self.nodes) and all(
            labels.get(key) == value for key, value in self.labels.items()
        )


class _Scores(msgspec.Struct, frozen=True):
    """One GPU in HAMi's list: its UUID, and its scores with other GPUs by their UUID."""

    uuid: str
    score: dict[str, int]


def links_of(
    node: NodeManifest,
    gpus: Sequence[Gpu],
    rules: Sequence[LinksRule],
    warnings: list[str],
) -> GpuLinks | None:
    """Return the links between the node's cards; None if no source has any. Invalid annotations are
    ignored with a warning."""
    annotations = node.metadata.annotations or {}
    cards = [gpu for gpu in gpus if gpu.parent is None]
    readers: tuple[tuple[str, Callable[[str, Sequence[Gpu]], GpuLinks | None]], ...] = (
        (GPU_LINKS, lambda text, cards: _annotated(text)),
        (HAMI_SCORES, _of_hami),
    )
    for name, read in readers:
        text = annotations.get(name)
        if text is None:
            continue
        try:
            if len(text) > _MOST_LETTERS:
                raise BadInputError(name, f"{len(text):,} characters are more than links need")
            links = read(text, cards)
        except BadInputError as error:
            warnings.append(f"ignored: {error}")
            continue
        if links is not None:
            return of_cards(links, cards)
    rule = next((rule for rule in rules if rule.fits(node)), None)
    return None if rule is None else of_cards(rule.links, cards)


def links_text(links: GpuLinks) -> str:
    """Return the value of the annotation `weft.dev/gpu-links` for these links."""
    return msgspec.json.encode(links).decode()


def _annotated(text: str) -> GpuLinks:
    try:
        links = msgspec.json.decode(text, type=GpuLinks)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInputError(GPU_LINKS, str(error)) from None
    return checked_links(links, GPU_LINKS)


def _of_hami(text: str, cards: Sequence[Gpu]) -> GpuLinks | None:
    """Read HAMi's scores, which are sums: 100 for each NVLink, and 10 (between sockets) to 60 for
    the PCIe path. None if no card is listed."""
    try:
        scores = msgspec.json.decode(text, type=list[_Scores])
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInputError(HAMI_SCORES, str(error)) from None
    score = {
        (scored.uuid, other): value for scored in scores for other, value in scored.score.items()
    }
    known = {scored.uuid for scored in scores}
    linked = [card for card in cards if card.uuid in known][:MOST_LINKED]
    if not linked:
        return None
    rows = tuple(
        " ".join(
            SELF if card is other else _hami_word(score.get((card.uuid, other.uuid)))
            for other in linked
        )
        for card in linked
    )
    generation = nvlink_generation(linked[0].model) if any("NV" in row for row in rows) else 0
    indexes = tuple(card.index for card in linked)
    return checked_links(GpuLinks(indexes, rows, generation), HAMI_SCORES)


def _hami_word(score: int | None) -> str:
    if score is None:
        raise BadInputError(HAMI_SCORES, "a pair of GPUs has no score")
    if score >= _HAMI_NVLINK:
        return f"NV{min(score // _HAMI_NVLINK, 99)}"
    nearest = max((least for least in _HAMI_PCIE if least <= score), default=10)
    return _HAMI_PCIE[nearest]


def of_cards(links: GpuLinks | None, gpus: Sequence[Gpu]) -> GpuLinks | None:
    """Return the links between those cards that the node has; None if fewer than two are left, or
    there are no links."""
    if links is None:
        return None
    there = {card.index for card in gpus if card.parent is None}
    places = [place for place, index in enumerate(links.indexes) if index in there]
    if len(places) < 2:
        return None
    if len(places) == len(links.indexes):
        return links
    rows = [row.split() for row in links.paths]
    return replace(
        links,
        indexes=tuple(links.indexes[place] for place in places),
        paths=tuple(" ".join(rows[one][other] for other in places) for one in places),
        numa=tuple(links.numa[place] for place in places) if links.numa else (),
    )
