"""A delta keeps the focus, and computes again only what changed."""

from typing import Any

from chromium import Window
from msgspec.structs import replace
from shown import check, eventually, opened, served
from test_console_tables import FixedSource, csv_of, gang_waiting

from weft.console.picture import Picture, ShownGpu, ShownNode, ShownPod, ShownShare, ShownWaiting
from weft.console.sources import Kind

FOCUSED = "document.activeElement.getAttribute('aria-expanded')"
ROWS = "[...document.querySelectorAll('.waiting tr[data-key]')].map(row => row.dataset.key)"


class ChangingSource(FixedSource):
    """A source whose picture can be replaced."""

    kind: Kind = "demo"
    lives = True

    def __init__(self, picture: Picture) -> None:
        super().__init__(picture)
        self.now = picture

    def picture(self) -> Picture:
        return self.now


def test_the_focus_stays_when_rows_above_it_go_and_its_section_moves(window: Window) -> None:
    gang = gang_waiting()
    older = [
        ShownWaiting(f"o{at}", "ml", f"older-{at}", "no room", "no room", since_s=float(at - 2))
        for at in range(2)
    ]
    quota = {
        f"q{at}": ShownWaiting(f"q{at}", "ml", f"quota-{at}", "quota", "quota") for at in range(90)
    }
    waiting = {row.uid: row for row in [*older, *gang.waiting.values()]}
    source = ChangingSource(replace(gang, waiting=waiting))
    with served(source) as url:
        opened(window, f"{url}/waiting")
        button = "document.querySelector('.waiting button')"
        assert window.run(f"{button}.focus(); {ROWS}.slice(0, 4)") == [
            "o0",
            "o1",
            "group ml/train",
            "a",
        ]
        source.now = replace(source.now, at_s=101.0, waiting=gang.waiting)
        eventually(window, f"{ROWS}[0] === 'group ml/train'")
        assert window.run(FOCUSED) == "false"
        source.now = replace(source.now, at_s=102.0, waiting={**gang.waiting, **quota})
        eventually(window, f"{ROWS}[0] === 'q0'")
        few = {**gang.waiting, "q0": quota["q0"]}
        source.now = replace(source.now, at_s=103.0, waiting=few)
        eventually(window, f"{ROWS}[0] === 'group ml/train'")
        assert window.run(FOCUSED) == "false"
        check(window, url)


SAME = """Promise.all([import('/static/model.js'), import('/static/lists.js')])
  .then(([{ Model }, { reasonCount, waitingByReason }]) => {
    const model = new Model();
    model.take(%s);
    const first = waitingByReason(model);
    const counted = [reasonCount(model) === first.length, first.length];
    model.apply({ at_s: 2, nodes: { put: { n: { name: "n" } } } });
    const kept = waitingByReason(model) === first;
    model.apply({ at_s: 3, waiting: { gone: %s } });
    const after = waitingByReason(model);
    return [...counted, kept, after !== first, reasonCount(model) === after.length, after.length];
  })"""


def test_reasons_are_counted_as_they_are_grouped_and_grouped_once(window: Window) -> None:
    """The launcher's reason is its gang's; without it the gang's is that it waits for others."""
    waiting = gang_waiting().waiting
    rows: dict[str, Any] = {
        uid: {"uid": uid, "namespace": "ml", "name": row.name, "group": row.group, "gang": row.gang}
        | ({"since_s": row.since_s} if row.since_s else {})
        for uid, row in waiting.items()
        if uid != "a"
    }
    with served(FixedSource(gang_waiting())) as url:
        opened(window, f"{url}/map")
        given = str({"at_s": 1, "waiting": rows}).replace("None", "null")
        assert window.run(SAME % (given, ["l"])) == [True, 2, True, True, True, 1]
        check(window, url)


def test_what_is_promised_leaves_out_kept_places_and_nodes_that_are_gone(window: Window) -> None:
    share = (ShownShare(0, 4_000, 500),)
    pods = {
        "u1": ShownPod("u1", "ml", "runs", "n1", share, gpu_milli=500),
        "u2": ShownPod("u2", "ml", "of-a-gone-node", "n2", share, gpu_milli=500),
        "u3": ShownPod("u3", "ml", "waits", "n1", share, kept=True, gpu_milli=500),
    }
    gpu = ShownGpu("n1", 0, "A100", memory_mib=40_000, milli=1000, promised_milli=1000)
    picture = Picture(100.0, nodes={"n1": ShownNode("n1")}, gpus={"n1/0": gpu}, pods=pods)
    with served(FixedSource(picture)) as url:
        opened(window, f"{url}/namespaces")
        cells = "[...document.querySelector('weft-namespaces tbody tr').cells]"
        texts = window.run(f"{cells}.map(cell => cell.textContent)")
        assert texts == ["ml", "2", "0.50", "4,000 MiB", "0"]
        (row,) = csv_of(window)
        assert (row["gpu_milli"], row["gpu_mib"]) == ("500", "4000")
        check(window, url)
