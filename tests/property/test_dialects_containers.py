"""The claims of a pod against a slow, obvious reading of its life."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from weft.dialects.resources import ContainerSlot, one_card, peak, per_container, slots, whole_cards
from weft.model import GpuMemoryRequest, GpuRequest, PodManifest

CARDS = (16160, 24576)

memories = st.one_of(
    st.just(GpuMemoryRequest()),
    st.builds(GpuMemoryRequest, st.just("mib"), st.integers(1, 8000)),
    st.builds(GpuMemoryRequest, st.just("percent"), st.integers(1, 100)),
    st.just(GpuMemoryRequest("whole")),
)
shared = st.builds(
    GpuRequest, st.integers(1, 3), memories, st.integers(0, 10).map(lambda n: n * 100)
)
gpu_requests = st.one_of(shared, st.integers(1, 3).map(whole_cards))
roles = st.sampled_from(["init", "sidecar", "main"])


def lives(ask):
    return st.lists(st.tuples(roles, st.one_of(st.none(), ask)), min_size=1, max_size=7)


def slots_of(life) -> tuple[list[ContainerSlot], list[GpuRequest | None]]:
    """The life's containers as slots in starting order, and what each of them asks."""
    before = [(role, ask) for role, ask in life if role != "main"]
    after = [(role, ask) for role, ask in life if role == "main"]
    manifest = msgspec.convert(
        {
            "spec": {
                "initContainers": [
                    {"name": f"i{n}", **({"restartPolicy": "Always"} if role == "sidecar" else {})}
                    for n, (role, _) in enumerate(before)
                ],
                "containers": [{"name": f"m{n}"} for n in range(len(after))],
            }
        },
        PodManifest,
    )
    return slots(manifest), [ask for _, ask in before + after]


def moments(places) -> list[list[int]]:
    """Which containers run together, for every moment of the pod's life."""
    found, sidecars = [], []
    for i, slot in enumerate(places):
        if slot.role == "sidecar":
            sidecars.append(i)
            found.append(list(sidecars))
        elif slot.role == "init":
            found.append([*sidecars, i])
    mains = [i for i, slot in enumerate(places) if slot.role == "main"]
    return [*found, [*sidecars, *mains]]


def worth(gpu_request: GpuRequest, card: int) -> tuple[int, int]:
    return (
        (card, 1000) if gpu_request.whole else (gpu_request.memory.mib_on(card), gpu_request.milli)
    )


@given(lives(gpu_requests), st.sampled_from(CARDS))
def test_what_runs_never_uses_more_than_the_claims_hold(life, card):
    places, asks = slots_of(life)
    held, containers = per_container(places, asks)
    for running in moments(places):
        used: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for i in running:
            ask, uses = asks[i], containers[i].gpu_requests
            if ask is None:
                assert uses == ()
                continue
            devices = [(c, n) for c in uses for n in range(held[c].count)][: ask.count]
            assert len(devices) == ask.count
            # Two claims may meet on one card, unless both are whole.
            assert len({c for c, _ in devices}) == 1 or all(held[c].whole for c, _ in devices)
            assert not ask.whole or all(held[c].whole for c, _ in devices)
            for device in devices:
                used.setdefault(device, []).append(worth(ask, card))
        for (gpu_request, _), parts in used.items():
            memory, milli = worth(held[gpu_request], card)
            assert sum(part[0] for part in parts) <= memory
            assert sum(part[1] for part in parts) <= milli


@given(
    lives(
        st.builds(
            GpuRequest, st.just(1), st.builds(GpuMemoryRequest, st.just("mib"), st.integers(1, 99))
        )
    )
)
def test_no_more_is_held_than_what_runs_together_and_the_largest_init_container(life):
    places, asks = slots_of(life)
    held, _ = per_container(places, asks)
    sizes = {"init": [0], "sidecar": [0], "main": [0]}
    for slot, ask in zip(places, asks, strict=True):
        sizes[slot.role].append(ask.memory.value if ask else 0)
    lending = max(sizes["main"])
    growth = max(0, max(sizes["init"]) - lending)
    total = sum(gpu_request.memory.value for gpu_request in held)
    assert total == sum(sizes["main"]) + sum(sizes["sidecar"]) + growth


@given(lives(st.integers(1, 5).map(whole_cards)))
def test_whole_cards_are_the_larger_of_init_and_main_containers(life):
    places, asks = slots_of(life)
    held, _ = per_container(places, asks)
    counts = [ask.count if ask else 0 for ask in asks]
    per_role = {
        role: [n for n, slot in zip(counts, places, strict=True) if slot.role == role]
        for role in ("init", "sidecar", "main")
    }
    expected = max([sum(per_role["main"]), *per_role["init"]]) + sum(per_role["sidecar"])
    assert sum(gpu_request.count for gpu_request in held) == expected


@given(
    lives(
        st.builds(
            GpuRequest,
            st.just(1),
            st.builds(GpuMemoryRequest, st.just("units"), st.integers(1, 9)),
            st.integers(0, 400),
        )
    )
)
def test_one_card_holds_the_most_that_ever_runs(life):
    places, asks = slots_of(life)
    held, containers = one_card(places, asks)
    sums = [sum(asks[i].memory.value for i in m if asks[i]) for m in moments(places)]
    cores = [sum(asks[i].milli for i in m if asks[i]) for m in moments(places)]
    assert [(c.memory.value, c.milli) for c in held] == (
        [(max(sums), min(max(cores), 1000))] if any(asks) else []
    )
    assert [c.gpu_requests for c in containers] == [(0,) if ask else () for ask in asks]


@given(st.lists(st.tuples(roles, st.integers(0, 9)), max_size=7))
def test_the_peak_is_the_most_of_all_moments(amounts):
    ordered = sorted(amounts, key=lambda a: a[0] == "main")
    places = [ContainerSlot(None, role, "") for role, _ in ordered]
    expected = max(sum(ordered[i][1] for i in m) for m in moments(places))
    assert peak(ordered) == expected
