"""KAI's bound pods: the account is what KAI's own rules say, restated card by card."""

import random
from collections import Counter
from decimal import Decimal

import pytest
from kai_world import Json, keeper, sharing, shown
from live_world import CARD_MIB
from long_form import few_or_many
from test_live_kai import KaiAccount

CARDS = 3
FRACTIONS = ("0.5", "0.25", ".1", "0.333", "5e-2", "0.9")


def random_pods(rng: random.Random) -> list[Json]:
    """Groups with a reservation pod or without, that says its card or not, and who shares them."""
    groups = [f"g{number}" for number in range(rng.randint(0, CARDS + 1))]
    pods = []
    for number, group in enumerate(groups):
        uuid = f"GPU-{number}" if number < CARDS else "GPU-gone"
        if rng.random() < 0.8:
            pods.append(keeper(group, rng.choice([uuid, uuid, uuid, ""])))
        if rng.random() < 0.2:
            pods.append(keeper(group, f"GPU-{rng.randrange(CARDS)}", f"twin-{group}"))
    for number in range(rng.randint(0, 5)):
        own = rng.sample(groups, min(len(groups), rng.choice([1, 1, 1, 2])))
        asks = rng.choice(
            [{"gpu_fraction": rng.choice(FRACTIONS)}, {"gpu_memory": str(rng.randint(1, 4000))}]
        )
        pods.append(sharing(f"p{number}", *own, **asks))
    return pods


def restated(pods: list[Json]) -> tuple[Counter[int], int]:
    """MiB of each card that somebody says, and how many whole cards nobody says which.

    Of the groups of a pod that has one without a card of its own, those with reservation pods keep
    these whole, and nobody else has anything there.
    """
    used: Counter[int] = Counter()
    unknown = 0
    keepers = [each for each in pods if each["metadata"]["namespace"] != "ml"]
    said: dict[str, set[str]] = {}
    for each in keepers:
        group = each["metadata"]["labels"]["runai-gpu-group"]
        uuid = each["metadata"]["annotations"].get("run.ai/reserve_for_gpu_index")
        if uuid:
            said.setdefault(group, set()).add(uuid)
    card_of = {group: min(uuids) for group, uuids in said.items() if len(uuids) == 1}
    sharing = []
    for each in pods:
        if each not in keepers:
            labels = each["metadata"]["labels"].items()
            groups = [text for key, text in labels if key.startswith("runai-gpu-group")]
            cards = {card_of.get(group, "") for group in groups} - {"", "GPU-gone"}
            sharing.append((each["metadata"], groups, cards, 0 < len(groups) == len(cards)))
    kept = {
        group
        for _, groups, _, is_known in sharing
        for group in groups
        if not is_known and said.get(group, set()) - {"GPU-gone"}
    }
    for meta, groups, _, is_known in sharing:
        own = [group for group in groups if group not in kept]
        if not is_known:
            unknown += max(1, len(groups)) - len(groups) + len(own)
            continue
        for group in own:
            fraction = meta["annotations"].get("gpu-fraction")
            mib = int(meta["annotations"].get("gpu-memory", 0))
            used[int(card_of[group][-1])] += int(Decimal(fraction) * CARD_MIB) if fraction else mib
    shared = {group for _, groups, _, _ in sharing for group in groups}
    for each in keepers:
        group = each["metadata"]["labels"]["runai-gpu-group"]
        if group not in shared or group in kept:
            uuid = each["metadata"]["annotations"].get("run.ai/reserve_for_gpu_index", "GPU-gone")
            if uuid == "GPU-gone":
                unknown += 1
            else:
                used[int(uuid[-1])] += CARD_MIB
    return used, unknown


@pytest.mark.parametrize("seed", range(few_or_many(30, 300)))
def test_the_account_is_kais(seed: int) -> None:
    rng = random.Random(seed)
    pods = random_pods(rng)
    rng.shuffle(pods)
    account = KaiAccount().take(*map(shown, pods))
    used, unknown = restated(pods)
    known = [used[card] for card in range(CARDS)]
    told = account.view.assumed
    lacking = sum("GPUs fewer than it requests" in why for why in told.values())
    if not unknown:
        assert account.used() == known
    if not lacking:
        assert sum(account.used()) == sum(known) + unknown * CARD_MIB
    assert all(has >= least for has, least in zip(account.used(), known, strict=True))
    rng.shuffle(pods)
    for each in pods:
        account.forget(shown(each))
    assert account.used() == [0] * CARDS
    assert account.ledger.holdings == {}
