"""A record gives every container that asks its own shares, and together no more than is charged."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from long_form import few_or_many
from test_dialects_round_trip import WEFTS_MARK, bound, limits, nodes, pods, settings

from weft.dialects.delivery import derived_record, record_of, why_not_due
from weft.dialects.registry import parse_pod, write
from weft.dialects.resources import slots
from weft.dialects.shares import placement_of, share_on
from weft.model import GpuRequest, Node, PodManifest, Share
from weft.model.annotations import PLACEMENT, PLACEMENT_COPY
from weft.model.delivery import (
    DeliveredCard,
    DeliveredContainer,
    DeliveredShare,
    decode_delivery,
    encode_delivery,
    problem_of,
)

FEWER = how(max_examples=few_or_many(8, 200), deadline=None)  # of each system
LABELS = {
    "genius": st.fixed_dictionaries(
        {"genius/gpu-memory-each": st.integers(1, 900).map(str)},
        optional={
            "genius/gpu-number": st.integers(1, 3).map(str),
            "genius/gpu-memory-total": st.integers(1, 9000).map(str),
        },
    ),
    "kubeknots": st.fixed_dictionaries({"GPU_MEM_REQ": st.integers(0, 900).map(str)}),
}
SYSTEMS = {**WEFTS_MARK, **dict.fromkeys(LABELS, limits(**{"nvidia.com/gpu": 2}))}


def possible(draw, request, node):
    """A placement that a ledger can hold: whole cards are nobody else's. None where there is none.

    Its amounts may be more than a card has, for memory may be lent.
    """
    free, shares = list(draw(st.permutations(node.gpus))), []
    asks = list(enumerate(request.shape.gpu_requests))
    for index, ask in sorted(asks, key=lambda ask: not ask[1].whole):
        if ask.count > len(free):
            return None
        cards = free[: ask.count] if ask.whole else draw(st.permutations(free))[: ask.count]
        too_much = any(ask.memory.mib_on(gpu.memory_mib) > gpu.memory_mib for gpu in cards)
        if too_much and ask.memory.kind in ("units", "node-units", "percent"):
            return None  # memory may be lent, but not units that no card has
        left = ask.memory.value
        for number, gpu in enumerate(cards, 1):
            if ask.whole:
                free.remove(gpu)
            if ask.split:
                mib = left if number == ask.count else draw(st.integers(0, left))
                left -= mib
                shares.append(Share(index, gpu.index, mib, 0, gpu.uuid))
            else:
                shares.append(share_on(index, ask, gpu))
    return placement_of(request, node, sorted(shares, key=lambda share: share.gpu_request))


@st.composite
def recorded(draw, name):
    """A pod's manifest, its request, placement, node, settings and record."""
    manifest = draw(pods(SYSTEMS[name]))
    if name in LABELS:
        manifest["metadata"]["labels"] = draw(LABELS[name])
    manifest["metadata"]["annotations"] = draw(
        st.sampled_from([{}, {"weft.dev/isolation": "mps"}, {"weft.dev/isolation": "none"}])
    )
    chosen, node = draw(settings), draw(nodes())
    pod = msgspec.convert(manifest, PodManifest)
    request = parse_pod(pod, chosen)
    placement = possible(draw, request, node)
    if placement is None:
        return None
    marks = write(request, placement, node, 7)
    found = record_of(request, placement, node, marks.env)
    assert (found is None) == (not placement.shares)
    if found is None:
        return None
    labels = {**manifest["metadata"]["labels"], **marks.labels}
    texts = {**manifest["metadata"]["annotations"], **marks.annotations}
    return pod, request, placement, node, chosen, found, bound(manifest, texts, labels)


def sums(shares):
    totals: dict[int, list[int]] = {}
    for share in shares:
        total = totals.setdefault(share.gpu, [0, 0])
        total[0] += share.memory_mib
        total[1] += share.milli
    return totals


def moments(pod, record):
    """The shares of what runs together, in the order of a pod's life."""
    begun, mains = [], []
    for slot in slots(pod):
        container = record.containers.get(slot.container.name)
        held = container.shares if container is not None else ()
        if slot.role == "sidecar":
            begun += held
        elif slot.role == "init":
            yield [*begun, *held]
        else:
            mains += held
    yield [*begun, *mains]


def survives_its_annotation_and_says_what_was_placed(name, drawn):
    _, request, placement, node, _, record, _ = drawn
    assert decode_delivery(encode_delivery(record)) == record
    assert (record.pod, record.node) == (placement.uid, node.name)
    assert record.isolation == request.shape.isolation
    assert {card.gpu: [card.memory_mib, card.milli] for card in record.cards} == sums(
        placement.shares
    )
    assert all(card.uuid == node.gpus[card.gpu].uuid for card in record.cards)
    assert record.containers.keys() == {c.name for c in request.containers if c.asked}


def promises_together_no_more_than_is_charged(name, drawn):
    pod, request, _, _, _, record, _ = drawn
    charged = {card.gpu: (card.memory_mib, card.milli) for card in record.cards}
    as_one = name in LABELS and request.shared_by_containers
    for together in moments(pod, record):
        for part in [[share] for share in together] if as_one else [together]:
            for gpu, (memory_mib, milli) in sums(part).items():
                assert memory_mib <= charged[gpu][0]
                # Alnair's containers may ask for more than a card's cores together.
                assert milli <= charged[gpu][1] or name == "alnair"


def asked_mib(ask: GpuRequest, node, share_mib: int, card_mib: int) -> int:
    """By hand: MiB of one card that this asks for."""
    kind, value = ask.memory.kind, ask.memory.value
    if kind == "node-units" and not node.unit_mib:
        kind = "mib" if ask.memory.unit_mib == 1 else "units"
    if ask.whole or ask.split or kind == "whole":
        return card_mib if not ask.split else share_mib
    if kind == "percent":
        return value * card_mib // 100
    if kind == "units":
        size = (card_mib + (ask.memory.unit_mib // 2 if ask.memory.half_up else 0)) // 1024
        return value * card_mib // size
    return value if kind == "mib" else 0


def gives_every_container_what_it_asks_of_each_gpu(name, drawn):
    _, request, placement, node, _, record, _ = drawn
    for container in request.containers:
        ask = container.asked
        if ask is None:
            continue
        own = record.containers[container.name].shares
        if name in LABELS and request.shared_by_containers:
            assert {s.gpu: [s.memory_mib, s.milli] for s in own} == sums(placement.shares)
            continue
        assert len(own) == ask.count  # distinct GPUs
        for share in own:
            card_mib = node.gpus[share.gpu].memory_mib
            assert share.memory_mib == asked_mib(ask, node, share.memory_mib, card_mib)
            assert share.milli == (1000 if ask.whole else ask.milli)


def gives_what_is_charged_beyond_that_to_one_container(name, drawn):
    """The pod ran out of memory before. A limit at what it asks would end it again."""
    pod, request, placement, node, _, before, _ = drawn
    if (name in LABELS and request.shared_by_containers) or name == "nvidia":
        return
    more = [
        msgspec.structs.replace(share, memory_mib=share.memory_mib + 777)
        for share in placement.shares
    ]
    raised = msgspec.structs.replace(placement, shares=tuple(more))
    record = record_of(request, raised, node, {})
    assert record is not None
    assert decode_delivery(encode_delivery(record)) == record
    charged = {card.gpu: card.memory_mib for card in record.cards}
    for together in moments(pod, record):
        assert all(mib <= charged[gpu] for gpu, (mib, _) in sums(together).items())
    using = [c for c in request.containers if c.asked and not c.asked.whole]
    if len(using) == 1 and len(request.containers) == 1:
        (own,) = (record.containers[using[0].name].shares,)
        (was,) = (before.containers[using[0].name].shares,)
        assert [s.memory_mib for s in own] == [s.memory_mib + 777 for s in was]


def is_derived_alike_from_the_pods_marks(name, drawn):
    """Pods that an older Weft bound without a record get the one that their marks say."""
    _, _, _, node, chosen, record, pod = drawn
    assert derived_record(pod, node, chosen) == record
    annotations = dict(pod.metadata.annotations)
    marked = json.loads(annotations["weft.dev/placement"])
    marked["pod"] = "another"
    annotations["weft.dev/placement"] = json.dumps(marked)
    meta = msgspec.structs.replace(pod.metadata, annotations=annotations)
    copied = msgspec.structs.replace(pod, metadata=meta)
    assert derived_record(copied, node, chosen) is None


@pytest.mark.parametrize("name", SYSTEMS)
@FEWER
@given(data=st.data())
def test_a_record(name, data):
    if (drawn := data.draw(recorded(name))) is None:
        return
    survives_its_annotation_and_says_what_was_placed(name, drawn)
    promises_together_no_more_than_is_charged(name, drawn)
    gives_every_container_what_it_asks_of_each_gpu(name, drawn)
    gives_what_is_charged_beyond_that_to_one_container(name, drawn)
    is_derived_alike_from_the_pods_marks(name, drawn)


def changed(pod, **marks):
    """The pod with these annotations instead; None removes one."""
    texts = {**(pod.metadata.annotations or {}), **marks}
    kept = {name: text for name, text in texts.items() if text is not None}
    meta = msgspec.structs.replace(pod.metadata, annotations=kept)
    return msgspec.structs.replace(pod, metadata=meta)


def is_due_on_every_node_that_may_be_shown(name, drawn):
    """Another size of its cards, or none that are known yet, are no reason to refuse a pod."""
    _, _, _, node, chosen, record, pod = drawn
    text = pod.metadata.annotations[PLACEMENT]
    pod = changed(pod, **{PLACEMENT_COPY: text})
    smaller = [msgspec.structs.replace(g, memory_mib=g.memory_mib - 424) for g in node.gpus]
    table = msgspec.structs.replace(chosen, interference_table=not chosen.interference_table)
    for shown in (node, Node("n", tuple(smaller)), Node("n")):
        assert why_not_due(record, pod, shown, chosen) == ""
        assert why_not_due(record, pod, shown, table) == ""
    bare = changed(pod, **{PLACEMENT_COPY: None})
    assert why_not_due(record, bare, node, chosen) == ""


EDITS = ("card", "amount", "limit", "share", "greedy", "more", "env", "none")


@st.composite
def forged(draw, record):
    """A record that is like the true one, as far as its author could be bothered."""
    some_uuid = st.sampled_from(["", "all", *(card.uuid for card in record.cards)])
    amount, gpu = st.integers(0, 90_000), st.integers(0, 9)
    milli = st.integers(0, 1000)
    cards, parts = list(record.cards), dict(record.containers)
    for _ in range(draw(st.integers(1, 3))):
        match draw(st.sampled_from(EDITS)):
            case "card":
                most = draw(st.integers(90_000, 10**6))
                card = (draw(gpu), draw(some_uuid), draw(amount), draw(milli), most, 1000)
                cards.append(DeliveredCard(*card))
            case "amount":
                at = draw(st.integers(0, len(cards) - 1))
                more = draw(st.integers(-5, 90_000))
                cards[at] = msgspec.structs.replace(
                    cards[at], memory_mib=cards[at].memory_mib + more, most_memory_mib=10**6
                )
            case "limit":
                cards = [msgspec.structs.replace(c, most_memory_mib=10**6) for c in cards]
            case "share":
                at, container = draw(st.sampled_from(cards)), draw(st.sampled_from([*parts]))
                share = DeliveredShare(at.gpu, at.uuid, draw(amount), draw(milli))
                kept = tuple(s for s in parts[container].shares if s.gpu != at.gpu)
                parts[container] = DeliveredContainer((*kept, share), parts[container].env)
            case "greedy":
                most_mib = {card.gpu: card.memory_mib for card in cards}
                container = draw(st.sampled_from([*parts]))
                kept = tuple(
                    msgspec.structs.replace(s, memory_mib=most_mib[s.gpu])
                    for s in parts[container].shares
                )
                parts[container] = DeliveredContainer(kept, parts[container].env)
            case "more":
                every = [DeliveredShare(c.gpu, c.uuid, c.memory_mib, c.milli) for c in cards]
                parts[draw(st.sampled_from(["main", "b", "other"]))] = DeliveredContainer(
                    tuple(every)
                )
            case "env":
                container = draw(st.sampled_from([*parts]))
                visible = draw(st.sampled_from(["all", "0,1,2,3", "GPU-0", "void", "1"]))
                env = {**parts[container].env, "NVIDIA_VISIBLE_DEVICES": visible}
                parts[container] = DeliveredContainer(parts[container].shares, env)
            case "none":
                kept = tuple(
                    msgspec.structs.replace(s, memory_mib=0)
                    for s in parts[next(iter(parts))].shares
                )
                parts[next(iter(parts))] = DeliveredContainer(kept, parts[next(iter(parts))].env)
    return msgspec.structs.replace(record, cards=tuple(cards), containers=parts)


def gets_no_more_than_is_due_by_a_forged_record(name, drawn, data):
    """By hand: the GPUs and amounts of the placement, no container more than it asks for."""
    pod, request, placement, node, chosen, record, marked = drawn
    pod_of = changed(marked, **{PLACEMENT_COPY: marked.metadata.annotations[PLACEMENT]})
    claim = data.draw(forged(record))
    if problem_of(claim) or why_not_due(claim, pod_of, node, chosen):
        return  # not delivered
    charged = sums(placement.shares)
    assert {c.gpu: [c.memory_mib, c.milli] for c in claim.cards} == charged
    asks = {container.name: container for container in request.containers if container.asked}
    for container, part in claim.containers.items():
        true = record.containers.get(container, DeliveredContainer())
        own = {share.gpu: share for share in true.shares}
        assert container in asks or not part.shares
        assert own.keys() == {share.gpu for share in part.shares}
        for share in part.shares:
            assert bool(share.memory_mib) >= bool(own[share.gpu].memory_mib)
            assert share.milli == own[share.gpu].milli
        shown = part.env.get("NVIDIA_VISIBLE_DEVICES", "void")
        names = {each for s in part.shares for each in (s.uuid, str(s.gpu))}
        assert shown in ("void", "none", "") or set(shown.split(",")) <= names
    if not (name in LABELS and request.shared_by_containers):
        *_, at_last = moments(pod, claim)
        assert all(mib <= charged[gpu][0] for gpu, (mib, _) in sums(at_last).items())


def is_refused_to_who_asks_for_nothing_and_to_whom_it_was_not_placed(name, drawn):
    _, _, _, node, chosen, record, marked = drawn
    text = marked.metadata.annotations[PLACEMENT]
    pod = changed(marked, **{PLACEMENT_COPY: text})
    spec = msgspec.structs.replace(
        pod.spec, init_containers=None, scheduler_name="default-scheduler"
    )
    bare = [msgspec.structs.replace(c, resources=type(c.resources)()) for c in pod.spec.containers]
    meta = msgspec.structs.replace(pod.metadata, labels={})
    asks_nothing = msgspec.structs.replace(
        pod, metadata=meta, spec=msgspec.structs.replace(spec, containers=bare)
    )
    assert "requests no GPU" in why_not_due(record, asks_nothing, node, chosen)
    unplaced = changed(pod, **{PLACEMENT: None, PLACEMENT_COPY: None})
    assert "missing" in why_not_due(record, unplaced, node, chosen)
    edited = changed(pod, **{PLACEMENT: text.replace('"shares":[[', '"shares":[[1')})
    assert "differs" in why_not_due(record, edited, node, chosen)
    another = text.replace('"u-1"', '"u-2"')
    another_pods = changed(pod, **{PLACEMENT: another, PLACEMENT_COPY: another})
    assert "another pod" in why_not_due(record, another_pods, node, chosen)


@pytest.mark.parametrize("name", SYSTEMS)
@FEWER
@given(data=st.data())
def test_a_record_is_believed_as_far_as_requests_and_placement_go(name, data):
    if (drawn := data.draw(recorded(name))) is None:
        return
    is_due_on_every_node_that_may_be_shown(name, drawn)
    gets_no_more_than_is_due_by_a_forged_record(name, drawn, data)
    is_refused_to_who_asks_for_nothing_and_to_whom_it_was_not_placed(name, drawn)
