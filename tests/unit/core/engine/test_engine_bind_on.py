"""kube-scheduler chooses the node (extender): pure questions, and a bind that decides again."""

from weft.core.engine import (
    Bind,
    BindFailed,
    BindOn,
    BindOnRefused,
    Engine,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
)
from weft.core.engine.questions import OfferedVictims, offered_victims, scores, which_fit
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.catalog import built_in
from weft.model import Code, Placement, PodRequest
from weft.model.reason import TEXT
from weft.testing import node, pod

PROFILE = "weft"


def engine(*nodes_: object, policy: str = "binpack") -> Engine:
    made = Engine([Profile(PROFILE, [built_in().create(policy)])])
    made.handle(NodesChanged(nodes_ or (node("a", gpus=2, memory_mib=1000), node("b"))), 0)  # type: ignore[arg-type]
    return made


def test_questions_reserve_nothing_and_say_why() -> None:
    asked = engine()
    profile = asked.profiles[PROFILE]
    big, small = pod("big", memory_mib=2000), pod("small", memory_mib=600)
    assert which_fit(asked, profile, small, ["a", "b", "gone"]).fits == ["a"]
    answers = which_fit(asked, profile, big, ["a", "b", "gone"])
    assert (answers.fits, answers.unknown) == ([], ["gone"])
    assert answers.unresolvable["b"] == TEXT[Code.NO_GPU]
    assert TEXT[Code.GPU_TOO_SMALL] in answers.unresolvable["a"]
    assert asked.ledger.holdings == {}


def test_room_that_others_hold_is_resolvable() -> None:
    asked = engine()
    for name in ("one", "two"):
        asked.handle(BindOn(pod(name, memory_mib=600), "a", PROFILE), 1)
    answers = which_fit(asked, asked.profiles[PROFILE], pod("three", memory_mib=600), ["a"])
    assert list(answers.failed) == ["a"]
    assert TEXT[Code.GPU_MEMORY] in answers.failed["a"]
    assert "400" in answers.failed["a"]


def test_scores_are_whole_numbers_from_0_to_10_best_first() -> None:
    asked = engine(*(node(name, gpus=1, memory_mib=1000) for name in "abc"))
    asked.handle(BindOn(pod("one", memory_mib=500), "b", PROFILE), 1)
    found = scores(asked, asked.profiles[PROFILE], pod("two", memory_mib=300), ["a", "b", "x"])
    assert found == [0, 10, 0]
    assert all(type(score) is int for score in found)


def test_a_pod_of_our_own_queue_is_not_lost_by_a_bind_that_fails() -> None:
    """Both forms may serve one schedulerName: what kube-scheduler fails at, Weft tries on."""
    asked = engine(node("a", gpus=1, memory_mib=1000))
    asked.handle(PodAdded(pod("big", memory_mib=1000)), 0)
    waits = pod("waits", memory_mib=600)
    asked.handle(PodAdded(waits), 1)
    assert isinstance(asked.handle(BindOn(waits, "a", PROFILE), 2)[0], BindOnRefused)
    assert waits.uid in asked.queue
    placed = asked.handle(PodGone("big"), 60 * 10**9)
    assert [c.pod.uid for c in placed if isinstance(c, Bind)] == ["waits"]


def test_a_pod_of_our_own_queue_comes_back_when_kube_schedulers_binding_is_refused() -> None:
    asked = engine(node("a", gpus=1, memory_mib=1000))
    asked.handle(PodAdded(pod("big", memory_mib=1000)), 0)
    waits = pod("waits", memory_mib=600)
    asked.handle(PodAdded(waits), 1)
    asked.ledger.release("big")
    assert isinstance(asked.handle(BindOn(waits, "a", PROFILE), 2)[0], Bind)
    assert waits.uid not in asked.queue
    asked.handle(BindFailed(waits.uid), 3)
    assert waits.uid in asked.queue
    assert audit(asked.ledger) == []


def test_bind_chooses_the_gpu_now_and_refuses_what_no_longer_fits() -> None:
    asked = engine()
    for at, name in enumerate(("one", "two")):
        outcome = asked.handle(BindOn(pod(name, memory_mib=600), "a", PROFILE), at)[0]
        assert isinstance(outcome, Bind)
        assert outcome.placement.shares[0].gpu == at
    refused = asked.handle(BindOn(pod("three", memory_mib=600), "a", PROFILE), 3)[0]
    assert isinstance(refused, BindOnRefused)
    assert refused.code is Code.GPU_MEMORY
    assert "three" not in {waiting.pod.name for waiting in asked.queue.waiting()}
    assert audit(asked.ledger) == []


def test_asking_again_is_the_same_bind_and_elsewhere_is_refused() -> None:
    asked = engine(node("a", gpus=1), node("b", gpus=1))
    one = pod("one", memory_mib=600)
    first = asked.handle(BindOn(one, "a", PROFILE), 1)
    assert asked.handle(BindOn(one, "a", PROFILE), 2) == first
    elsewhere = asked.handle(BindOn(one, "b", PROFILE), 3)[0]
    assert isinstance(elsewhere, BindOnRefused)


def test_a_failed_bind_gives_the_place_back_and_does_not_queue() -> None:
    asked = engine()
    one = pod("one", memory_mib=600)
    asked.handle(BindOn(one, "a", PROFILE), 1)
    assert asked.handle(BindFailed(one.uid), 2) == []
    assert asked.ledger.holdings == {}
    assert len(asked.queue) == 0


def test_unknown_nodes_are_refused() -> None:
    refused = engine().handle(BindOn(pod("one", memory_mib=6), "nowhere", PROFILE), 1)[0]
    assert isinstance(refused, BindOnRefused)


def offers(asked: Engine, wanted: PodRequest, **proposed: OfferedVictims) -> object:
    return offered_victims(asked, asked.profiles[PROFILE], wanted, proposed, by_sums=True)


def test_victims_count_only_where_their_gpus_make_room() -> None:
    asked = engine(node("a", gpus=2, memory_mib=1000))
    for name in ("one", "two"):
        made = pod(name, memory_mib=600)
        asked.handle(BindOn(made, "a", PROFILE), 1)
        asked.handle(PodBound(made.uid), 1)
    asked.handle(PodAdded(pod("cpu-only")), 2)
    big = pod("big", memory_mib=900)
    uid = {placed.pod.name: uid for uid, placed in asked.placed.items()}
    before: dict[str, Placement] = {u: h.placement for u, h in asked.ledger.holdings.items()}
    helps, useless = OfferedVictims((uid["one"],), 1), OfferedVictims((uid["cpu-only"],))
    assert offers(asked, big, a=helps) == {"a": helps}
    assert offers(asked, big, a=useless, nowhere=OfferedVictims()) == {}
    assert {u: h.placement for u, h in asked.ledger.holdings.items()} == before
    assert audit(asked.ledger) == []
