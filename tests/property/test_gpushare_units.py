"""Whatever counts in what, and is switched: the ledger before a restart is the one after it, and no
pod holds less than its node gave it."""

from contextlib import AsyncExitStack

from hypothesis import event, given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from units_world import World

from fakes.api_time import run

THINGS = (
    "join",
    "join",
    "leave",
    "switch",
    "wait",
    "wait",
    "place",
    "bind_unmarked",
    "end",
    "restart",
)
STORIES = st.lists(st.tuples(st.sampled_from(THINGS), st.integers(0, 83)), max_size=16)
BEGIN = (("join", 0), ("join", 5))  # one node that counts GiB, one that counts MiB


def played(story: list[tuple[str, int]]) -> World:
    """Ends with a restart."""

    async def play() -> World:
        world = World()
        async with AsyncExitStack() as stack:
            await world.begin(stack)
            for what, number in (*BEGIN, *story, ("restart", 0)):
                if what == "restart":
                    await world.restart()
                else:
                    world.do(what, number)
                await world.settle()
            await world.live.stop()
        return world

    return run(play())


@settings(max_examples=few_or_many(10, 40), deadline=None)
@given(STORIES)
def test_a_restart_changes_nothing_and_nothing_is_given_twice(story: list[tuple[str, int]]) -> None:
    for what in played(story).hits:
        event(what)


def test_every_turn_of_a_story_is_taken() -> None:
    """So that the property above is about something."""
    story = [
        ("place", 12),
        ("bind_unmarked", 25),
        ("wait", 6),
        ("wait", 3),
        ("switch", 4),
        ("join", 2),
        ("switch", 6),
        ("wait", 2),
        ("end", 0),
        ("leave", 0),
    ]
    hits = played(story).hits
    assert {thing for thing in THINGS if not hits[thing]} == {"restart"}
    assert hits["bound by Weft"] >= 2
