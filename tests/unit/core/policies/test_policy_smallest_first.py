"""custom-scheduler's queue: the smallest request goes first, as the original's min-heap has it."""

from weft.cluster.config.form import Configuration
from weft.cluster.config.made_profiles import profiles
from weft.core.engine import Bind, Engine, NodesChanged, PodAdded, PodGone
from weft.core.policies.catalog import built_in
from weft.testing.builders import node, pod


def test_when_room_comes_the_smallest_request_gets_it_first() -> None:
    engine = Engine(profiles(Configuration(), built_in()))
    engine.handle(NodesChanged((node("n", gpus=1, memory_mib=10_000),)), 0)
    first = pod("first", memory_mib=10_000, scheduler_name="custom-scheduler")
    engine.handle(PodAdded(first), 1)
    for number, mib in enumerate((6_000, 3_000, 5_000)):
        late = pod(
            f"asks-{mib}", memory_mib=mib, scheduler_name="custom-scheduler", created_ns=number
        )
        engine.handle(PodAdded(late), 2 + number)
    commands = engine.handle(PodGone("first"), 60 * 10**9)
    placed = [command.pod.uid for command in commands if isinstance(command, Bind)]
    assert placed == ["asks-3000", "asks-5000"]
