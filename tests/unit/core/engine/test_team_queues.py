"""Teams' queues: what they hold, what limits refuse, whom a release wakes, whose turn it is."""

from engine_talk import SECOND, engine_of, one_card, places
from msgspec import UNSET
from msgspec.structs import replace

from weft.core.engine import (
    BindFailed,
    Engine,
    Evict,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    Tick,
    Unschedulable,
)
from weft.core.engine.reasons import summarise
from weft.core.explain.smallest_change import changes
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.packing import BestFit
from weft.core.record.file import Header, PolicyUse, ProfileUse
from weft.model import Code, Gang, Node, PodRequest
from weft.model.queue_rules import NO_QUEUES, QueueAmounts, QueueRules, QueueTerms
from weft.testing import node, placement, pod
from weft.testing.builders import CARD_MIB

FAIR = QueueRules("fair")


def of(team: str, name: str, **asked: object) -> PodRequest:
    return replace(pod(name, **asked), queue=team)  # type: ignore[arg-type]


def limited(**limits: object) -> QueueRules:
    amounts = QueueAmounts(**limits)  # type: ignore[arg-type]
    return QueueRules(queues=(QueueTerms("a", limits=amounts),))


def deciding(rules: QueueRules, *nodes: Node) -> Engine:
    return Engine([Profile("weft", [BestFit()])], nodes, queues=rules)


def add(engine: Engine, *pods: PodRequest, now_ns: int = 0) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in pods:
        found |= places(engine.handle(PodAdded(each), now_ns))
    return found


def why(engine: Engine, asked: PodRequest) -> str:
    known = engine.assess(engine.profile_of(asked), asked)
    return str(summarise(engine.ledger.table, known, asked.warnings))


class TestLimits:
    def test_a_pod_beyond_its_queues_limit_waits_and_its_reason_has_the_numbers(self) -> None:
        engine = deciding(limited(gpu_milli=8_000), node("n", gpus=16))
        assert add(engine, of("a", "p1", gpus=6)) == {"p1": "n"}
        beyond = of("a", "p2", gpus=4)
        (told,) = [c for c in engine.handle(PodAdded(beyond), 0) if isinstance(c, Unschedulable)]
        assert told.record.counts[Code.QUEUE_LIMIT] == 1
        words = "queue a holds 6 of at most 8 GPUs; this pod asks for 4"
        assert why(engine, beyond) == f"0/1 GPU nodes: 1 × {words}"

    def test_others_and_smaller_pods_of_the_queue_are_let_in(self) -> None:
        engine = deciding(limited(gpu_milli=8_000), node("n", gpus=32))
        found = add(
            engine,
            *(of("a", "p1", gpus=6), of("a", "p2", gpus=4), of("a", "p3", gpus=2)),
            of("b", "q", gpus=12),
        )
        assert found.keys() == {"p1", "p3", "q"}

    def test_what_the_queue_releases_anywhere_lets_its_next_pod_in(self) -> None:
        """The freed node itself has no room for it."""
        nodes = node("small", gpus=2), node("large", gpus=8)
        engine = deciding(limited(gpu_milli=4_000), *nodes)
        assert add(engine, of("a", "p1", gpus=2)) == {"p1": "small"}
        add(engine, of("a", "p2", gpus=4))
        commands = engine.handle(PodGone("p1"), 2 * SECOND)
        assert places(commands) == {"p2": "large"}

    def test_a_refused_binding_gives_the_queue_its_room_back(self) -> None:
        engine = deciding(limited(gpu_milli=1_000), node("n", gpus=4))
        assert add(engine, of("a", "p1", gpus=1), of("a", "p2", gpus=1)) == {"p1": "n"}
        found = places(engine.handle(BindFailed("p1"), 2 * SECOND))
        found |= places(engine.handle(Tick(), 4 * SECOND))
        assert len(found) == 1
        assert engine.teams.use("a").gpu_milli == 1_000

    def test_large_amounts_are_written_out(self) -> None:
        engine = deciding(limited(memory_mib=1_310_721), node("n", gpus=16, memory_mib=81_920))
        pods = [of("a", f"p{number}", gpus=1) for number in range(16)]
        assert len(add(engine, *pods)) == 16
        words = "queue a holds 1,310,720 of at most 1,310,721 MiB of GPU memory"
        assert words in why(engine, of("a", "x", gpus=1))

    def test_memory_cores_and_models_are_limited_each(self) -> None:
        nodes = (
            node("old", gpus=4, model="Tesla T4", memory_mib=16_384),
            node("new", gpus=4, model="NVIDIA-A100-SXM4-80GB", memory_mib=81_920),
        )
        engine = deciding(limited(memory_mib=100_000), *nodes)
        assert add(engine, of("a", "p1", gpus=1, models=["NVIDIA-A100-SXM4-80GB"]))
        assert "holds 81,920 of at most 100,000 MiB of GPU memory; this pod asks for 81,920" in why(
            engine, of("a", "x", gpus=1, models=["NVIDIA-A100-SXM4-80GB"])
        )
        assert add(engine, of("a", "p2", gpus=1)) == {"p2": "old"}

        engine = deciding(limited(models=(("a100", 1_000),)), *nodes)
        assert add(engine, of("a", "p1", gpus=1, models=["NVIDIA-A100-SXM4-80GB"]))
        assert add(engine, of("a", "p2", gpus=4)) == {"p2": "old"}
        assert "queue a holds 1 of at most 1 a100 GPUs; this pod asks for 2" in why(
            engine, of("a", "x", gpus=2)
        )

        engine = deciding(limited(core_milli=500), *nodes)
        assert add(engine, of("a", "p1", milli=300)).keys() == {"p1"}
        assert "holds 30 of at most 50 % of a GPU's cores; this pod asks for 30" in why(
            engine, of("a", "x", milli=300)
        )

    def test_percent_counts_as_the_card_makes_it(self) -> None:
        nodes = node("small", gpus=1, memory_mib=10_000), node("large", gpus=1, memory_mib=80_000)
        engine = deciding(limited(memory_mib=20_000), *nodes)
        half = of("a", "p1", percent=50)
        known = engine.assess(engine.profile_of(half), half)
        refused = dict(zip([n.name for n in engine.ledger.table.nodes], known.codes, strict=True))
        assert refused == {"small": 0, "large": Code.QUEUE_LIMIT}
        assert add(engine, half) == {"p1": "small"}
        assert engine.teams.use("a").memory_mib == 5_000
        assert engine.teams.use("a").gpu_milli == 500

    def test_a_share_counts_as_the_larger_part_of_memory_and_cores(self) -> None:
        engine = deciding(limited(gpu_milli=10_000), node("n", gpus=1, memory_mib=10_000))
        add(engine, of("a", "p1", memory_mib=2_500), of("a", "p2", memory_mib=1_000, milli=600))
        assert engine.teams.use("a").gpu_milli == 250 + 600

    def test_a_mig_instance_counts_as_its_part_of_the_card(self) -> None:
        engine = deciding(limited(gpu_milli=600), node("n", gpus=1, memory_mib=16_384, mig=2))
        model = engine.ledger.table.nodes[0].gpus[1].model
        found = add(engine, of("a", "p1", gpus=1, models=[model]))
        assert found == {"p1": "n"}
        assert engine.teams.use("a").gpu_milli == 500
        assert "queue a holds 0.5 of at most 0.6 GPUs; this pod asks for 0.5" in why(
            engine, of("a", "x", gpus=1, models=[model])
        )

    def test_a_gang_never_takes_its_queue_beyond_the_limit(self) -> None:
        gang = Gang("scheduler-plugins", "default", "train", least=3)
        members = [replace(of("a", f"p{i}", gpus=1), gang=gang) for i in range(3)]
        engine = deciding(limited(gpu_milli=2_000), node("n", gpus=8))
        assert not add(engine, *members)
        assert engine.teams.use("a").gpu_milli == 0
        engine = deciding(limited(gpu_milli=3_000), node("n", gpus=8))
        assert len(add(engine, *members)) == 3
        assert not add(engine, of("a", "p4", gpus=1))

    def test_fewer_gpus_are_the_smallest_change_and_so_is_a_larger_limit(self) -> None:
        engine = deciding(limited(gpu_milli=8_000), node("n", gpus=16))
        add(engine, of("a", "p1", gpus=6), of("a", "p2", gpus=4))
        beyond = of("a", "p2", gpus=4)
        found = {change.axis: change.text for change in changes(engine, beyond)}
        assert found["count"] == "request at most 2 GPUs instead of 4"
        assert found["queue"] == "raise limits.gpus of queue a from 8 to 10"

    def test_a_full_cluster_does_not_hide_the_limit(self) -> None:
        engine = deciding(limited(gpu_milli=1_000), node("n", gpus=2))
        add(engine, of("a", "p1", gpus=1), of("b", "p2", gpus=1))
        assert "queue a holds 1 of at most 1 GPUs" in why(engine, of("a", "p3", gpus=1))

    def test_a_pod_without_gpus_is_not_limited(self) -> None:
        engine = deciding(limited(gpu_milli=0), node("n", gpus=2))
        assert add(engine, of("a", "p1", cpu_milli=100)) == {"p1": "n"}


class TestCharging:
    def test_a_restarted_engine_counts_the_same_from_bound_pods_alone(self) -> None:
        engine = deciding(FAIR, node("n", gpus=8))
        pods = [of("a", "p1", gpus=2), of("b", "p2", milli=300), of("a", "p3", gpus=1)]
        add(engine, *pods)
        again = deciding(FAIR)
        for each in pods:
            place = engine.ledger.holdings[each.uid].placement
            again.handle(PodSeenBound(place, queue=each.team_queue), 0)
        again.handle(NodesChanged((node("n", gpus=8),)), 0)
        for team in ("a", "b"):
            now, then = again.teams.use(team), engine.teams.use(team)
            assert (now.gpu_milli, now.memory_mib, now.models) == (
                then.gpu_milli,
                then.memory_mib,
                then.models,
            )
            assert again.teams.turn(team) == engine.teams.turn(team)

    def test_a_bound_pod_whose_label_moves_is_charged_to_the_other_queue(self) -> None:
        engine = deciding(limited(gpu_milli=1_000), node("n", gpus=4))
        add(engine, of("a", "p1", gpus=1), of("a", "p2", gpus=1))
        held = engine.ledger.holdings["p1"].placement
        commands = engine.handle(PodSeenBound(held, queue="b"), 2 * SECOND)
        assert places(commands) == {"p2": "n"}
        assert engine.teams.use("b").gpu_milli == 1_000

    def test_a_pod_without_a_label_belongs_to_its_namespace(self) -> None:
        engine = deciding(limited(gpu_milli=1_000), node("n", gpus=4))
        mine = [replace(pod(f"p{i}", gpus=1), namespace="a") for i in range(2)]
        assert add(engine, *mine) == {"p0": "n"}

    def test_trials_leave_nothing_behind(self) -> None:
        engine = deciding(limited(gpu_milli=8_000), node("n", gpus=8))
        add(engine, of("a", "p1", gpus=3))
        with engine.trial(["p1"]):
            assert engine.teams.use("a").gpu_milli == 0
            assert engine.ledger.reserve(placement("x", "n", {7: 1000}))
        assert engine.teams.use("a").gpu_milli == 3_000
        assert engine.teams.use("a").pods == 1

    def test_without_rules_nothing_is_counted(self) -> None:
        engine = deciding(NO_QUEUES, node("n", gpus=8))
        add(engine, of("a", "p1", gpus=3))
        assert engine.ledger.on_booked is None
        assert engine.teams.use("a").pods == 0

    def test_a_decisions_files_header_keeps_the_rules(self) -> None:
        rules = limited(gpu_milli=1_000)
        header = Header([ProfileUse("weft", [PolicyUse("best-fit")])], queues=rules)
        engine = header.engine(lambda name: BestFit())
        assert engine.teams.rules == rules
        assert Header([ProfileUse("weft", [PolicyUse("best-fit")])]).queues is UNSET


class TestFairOrder:
    def test_the_queue_that_holds_least_goes_first_whatever_priority_others_have(self) -> None:
        engine = deciding(FAIR, node("n", gpus=3))
        add(engine, of("a", "a1", gpus=2), of("b", "b1", gpus=1))
        add(engine, of("a", "a2", gpus=1, priority=100), of("b", "b2", gpus=1))
        assert places(engine.handle(PodGone("b1"), 2 * SECOND)) == {"b2": "n"}

    def test_within_a_queue_the_highest_priority_goes_first(self) -> None:
        engine = deciding(FAIR, one_card("n"))
        add(engine, of("b", "b1", gpus=1))
        add(engine, of("a", "low", gpus=1), of("a", "high", gpus=1, priority=5))
        assert places(engine.handle(PodGone("b1"), 2 * SECOND)) == {"high": "n"}

    def test_shares_count_by_weight(self) -> None:
        rules = QueueRules("fair", (QueueTerms("a", weight=3),))
        engine = deciding(rules, node("n", gpus=4))
        add(engine, of("a", "a1", gpus=2), of("b", "b1", gpus=1), of("c", "c1", gpus=1))
        add(engine, of("b", "b2", gpus=1), of("a", "a2", gpus=1))
        assert places(engine.handle(PodGone("c1"), 2 * SECOND)) == {"a2": "n"}

    def test_a_queue_below_its_guarantee_goes_before_one_that_holds_less(self) -> None:
        promised = QueueAmounts(gpu_milli=3_000)
        rules = QueueRules("fair", (QueueTerms("a", guarantee=promised),))
        engine = deciding(rules, node("n", gpus=4))
        add(engine, of("a", "a1", gpus=2), of("b", "b1", gpus=1), of("c", "c1", gpus=1))
        add(engine, of("b", "b2", gpus=1), of("a", "a2", gpus=1))
        assert places(engine.handle(PodGone("c1"), 2 * SECOND)) == {"a2": "n"}
        add(engine, of("a", "a3", gpus=1))
        assert places(engine.handle(PodGone("a1"), 4 * SECOND)) == {"b2": "n", "a3": "n"}

    def test_the_dominant_share_is_of_memory_cores_or_cpu(self) -> None:
        engine = deciding(FAIR, node("n", gpus=2, memory_mib=10_000, cpu_milli=10_000))
        add(engine, of("a", "a1", cpu_milli=6_000), of("b", "b1", gpus=1), of("c", "c1", gpus=1))
        assert engine.teams.share("a") == 0.6
        add(engine, of("a", "a2", gpus=1), of("b", "b2", gpus=1))
        assert places(engine.handle(PodGone("c1"), 2 * SECOND)) == {"b2": "n"}

    def test_whoever_fits_goes_where_the_next_queues_pod_does_not(self) -> None:
        engine = deciding(FAIR, node("n", gpus=4))
        add(engine, of("a", "a1", gpus=2), of("c", "c1", gpus=2))
        add(engine, of("b", "b1", gpus=4), of("a", "a2", gpus=1))
        assert places(engine.handle(PodGone("c1"), 2 * SECOND)) == {"a2": "n"}

    def test_a_pod_that_backs_off_does_not_lose_its_queues_turn(self) -> None:
        engine = deciding(FAIR, node("n", gpus=2))
        add(engine, of("a", "a1", gpus=1), of("a", "a2", gpus=1))
        add(engine, of("b", "b1", gpus=1))
        add(engine, of("a", "a3", gpus=1))
        assert places(engine.handle(PodGone("a1"), 1)) == {"b1": "n"}

    def test_a_queue_with_many_pods_that_fit_nowhere_keeps_no_other_waiting(self) -> None:
        engine = Engine(
            [Profile("weft", [BestFit()])], [node("n", gpus=2)], queues=FAIR, turn_looks=3_000
        )
        add(engine, of("b", "b0", gpus=1))
        engine.handle(PodBound("b0"), 0)
        now_ns, found = 0, dict[str, str]()
        for number in range(400):
            found |= add(engine, of("a", f"a{number}", gpus=2, memory_mib=1 + number))
        found |= add(engine, of("b", "b1", gpus=1))
        for _ in range(12):
            now_ns += SECOND
            found |= places(engine.handle(Tick(), now_ns))
        assert found == {"b1": "n"}
        assert audit(engine.ledger) == []


def test_what_a_queue_holds_beyond_its_guarantee_is_borrowed() -> None:
    promised = QueueAmounts(gpu_milli=2_000)
    rules = QueueRules("fair", (QueueTerms("a", guarantee=promised),))
    engine = deciding(rules, node("n", gpus=8))
    add(engine, *(of("a", f"a{i}", gpus=1) for i in range(3)))
    add(engine, *(of("b", f"b{i}", gpus=1) for i in range(4)))
    assert engine.teams.borrowed_milli() == {"a": 1_000, "b": 4_000}
    assert engine.teams.beyond_guarantee("a", ()) == (1_000,)
    assert engine.teams.beyond_guarantee("a", ("a0", "a1", "b0", "nobody")) == (-1_000,)
    assert engine.teams.beyond_guarantee("b", ()) == (), "nothing is guaranteed"


def test_engine_of_counts_no_queue() -> None:
    assert not engine_of(node("n", gpus=1)).teams.count


def test_what_is_kept_for_a_pod_counts_before_it_is_placed() -> None:
    """Else two pods would have others ended for them, and the limit let in only one."""
    rules = limited(gpu_milli=1_000)
    profile = Profile("weft", [BestFit()], preempts=True)
    engine = Engine([profile], [node("n", gpus=2)], queues=rules)
    for name in ("low0", "low1"):
        add(engine, of("b", name, gpus=1))
        engine.handle(PodBound(name), 0)
    ended = []
    for name in ("high0", "high1"):
        commands = engine.handle(PodAdded(of("a", name, gpus=1, priority=9)), SECOND)
        ended += [c.placement.uid for c in commands if isinstance(c, Evict)]
    assert len(ended) == 1
    assert places(engine.handle(PodGone(ended[0]), 2 * SECOND)) == {"high0": "n"}
    assert "queue a holds 1 of at most 1 GPUs" in why(engine, of("a", "x", gpus=1))


def test_once_the_pod_is_gone_that_a_place_was_kept_for_the_next_of_its_queue_is_tried() -> None:
    rules = limited(gpu_milli=1_000)
    profile = Profile("weft", [BestFit()], preempts=True)
    nodes = node("n", gpus=1), node("small", gpus=1, memory_mib=100)
    engine = Engine([profile], nodes, queues=rules)
    add(engine, of("b", "low", memory_mib=CARD_MIB))
    engine.handle(PodBound("low"), 0)
    engine.handle(PodAdded(of("a", "high", memory_mib=CARD_MIB, priority=9)), SECOND)
    assert not add(engine, of("a", "next", memory_mib=50), now_ns=SECOND)
    found = places(engine.handle(PodGone("high"), 2 * SECOND))
    found |= places(engine.handle(Tick(), 20 * SECOND))
    assert found == {"next": "small"}
