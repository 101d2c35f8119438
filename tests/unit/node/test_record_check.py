"""No order of pods that come and go promises more of a card than the node's settings allow."""

from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from weft.model import Gpu
from weft.model.delivery import DeliveredCard, DeliveryRecord
from weft.node.agent.container_grant import why_refused
from weft.node.devices.reader import GpuDevice

NODE = "n1"
DEVICES = tuple(GpuDevice(Gpu(index, 100, "A100", f"GPU-{index}")) for index in range(2))


def record(uid: str, *cards: tuple[int, int, int]) -> DeliveryRecord:
    """Cards as index, MiB and thousandths; 100 MiB and 1000 thousandths may be promised of each."""
    made = tuple(
        DeliveredCard(gpu, f"GPU-{gpu}", memory_mib, milli, 100, 1000)
        for gpu, memory_mib, milli in cards
    )
    return DeliveryRecord(uid, NODE, "weft", made, {})


CARDS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(0, 600)),
    min_size=1,
    max_size=2,
    unique_by=lambda card: card[0],
)
STEPS = st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), CARDS)), max_size=30)


@settings(max_examples=few_or_many(25, 2000))
@given(STEPS)
def test_no_card_is_promised_beyond_its_limit_and_nobody_is_refused_without_need(
    steps: list[tuple[int, list[tuple[int, int, int]] | None]],
) -> None:
    held: dict[str, DeliveryRecord] = {}
    for number, cards in steps:
        uid = f"uid-{number}"
        if cards is None:
            held.pop(uid, None)
            continue
        wanted = held.get(uid) or record(uid, *cards)
        after = {**held, uid: wanted}
        fits = all(
            sum(c.memory_mib for r in after.values() for c in r.cards if c.gpu == gpu) <= 100
            and sum(c.milli for r in after.values() for c in r.cards if c.gpu == gpu) <= 1000
            for gpu in {card.gpu for card in wanted.cards}
        )
        assert (why_refused(wanted, uid, NODE, DEVICES, held.values(), 1000) == "") == fits
        if fits:
            held = after


def test_the_limit_is_the_settings_and_nothing_that_a_record_says() -> None:
    generous = DeliveredCard(0, "GPU-0", 80, 0, 10**6, 10**6)
    held = [record("uid-a", (0, 60, 0))]
    wanted = DeliveryRecord("uid-b", NODE, "weft", (generous,), {})
    refused = why_refused(wanted, "uid-b", NODE, DEVICES, held, 1000)
    assert refused == (
        "GPU 0 has 60 MiB promised to pods that run; 80 MiB more would exceed the limit of 100 MiB"
    )
    assert why_refused(wanted, "uid-b", NODE, DEVICES, held, 1500) == ""
    assert why_refused(wanted, "uid-b", NODE, DEVICES, (), 1000) == ""


def test_thousandths_are_limited_too() -> None:
    held = [record("uid-a", (0, 0, 700))]
    refused = why_refused(record("uid-b", (0, 0, 301)), "uid-b", NODE, DEVICES, held, 1000)
    assert refused == (
        "GPU 0 has 700 thousandths promised to pods that run; 301 more would exceed the limit of "
        "1,000"
    )


def test_a_card_that_is_cut_is_not_given_whole() -> None:
    cut = (GpuDevice(Gpu(0, 100, "A100", "GPU-0", in_service=False)),)
    refused = why_refused(record("uid-a", (0, 1, 0)), "uid-a", NODE, cut, (), 1000)
    assert refused == "GPU 0 is out of service: it is cut into MIG instances"


def test_a_uuid_that_nobody_knew_is_no_difference() -> None:
    unknown = DeliveredCard(0, "", 1, 0, 100, 1000)
    wanted = DeliveryRecord("uid-a", NODE, "gpushare", (unknown,), {})
    assert why_refused(wanted, "uid-a", NODE, DEVICES, (), 1000) == ""
