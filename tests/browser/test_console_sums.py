"""The sums that the page computes from a picture's rows are the ledger's, in generated states."""

from collections import Counter

import pytest
from chromium import Window
from long_form import few_or_many
from shown import check, eventually, opened, served
from test_console_picture import RandomStory
from test_console_tables import FixedSource

from weft.core.engine.nominations import is_kept
from weft.core.engine.team_queues import charge_of
from weft.core.explain.of_engine import explanation_of

STATES = range(100, 100 + few_or_many(6, 40))
TILES = """Object.fromEntries([...document.querySelectorAll('.tile')].map(tile =>
  [...tile.children].slice(0, 3).map(each => each.textContent))
  .map(([name, ...rest]) => [name, rest]))"""
REASONS = """Object.fromEntries([...document.querySelectorAll('.waiting tbody tr')].map(row =>
  [row.dataset.key, row.cells[3].textContent]))"""


def amount(text: str) -> float:
    return float(text.replace(",", ""))


def check_tiles(tiles: dict[str, list[str]], story: RandomStory) -> None:
    engine = story.engine
    nodes, holdings = engine.ledger.table.nodes, engine.ledger.holdings
    cut = {(node.name, gpu.parent) for node in nodes for gpu in node.gpus if gpu.parent is not None}
    cards = [
        (node.name, gpu) for node in nodes for gpu in node.gpus if (node.name, gpu.index) not in cut
    ]
    shares = [
        (holding.placement.node, share)
        for holding in holdings.values()
        for share in holding.placement.shares
        if (holding.placement.node, share.gpu) not in cut
    ]
    milli, mib = (sum(share.milli for _, share in shares), sum(s.memory_mib for _, s in shares))
    whole_milli, whole_mib = (
        sum(gpu.milli for _, gpu in cards),
        sum(gpu.memory_mib for _, gpu in cards),
    )
    held = {(name, share.gpu) for name, share in shares}
    idle = sum((name, gpu.index) not in held and gpu.in_service for name, gpu in cards)
    waiting = [entry.pod for entry in engine.queue.waiting()]

    share, of = tiles["Cores promised"]
    assert share == (f"{int(100 * milli / whole_milli + 0.5)} %" if whole_milli else "–")
    promised, _, total = of.removesuffix(" GPUs").partition(" of ")
    assert amount(promised) == pytest.approx(milli / 1000, abs=0.0501)
    assert amount(total) == pytest.approx(whole_milli / 1000, abs=0.501)
    share, of = tiles["Memory promised"]
    assert share == (f"{int(100 * mib / whole_mib + 0.5)} %" if whole_mib else "–")
    promised, _, total = of.removesuffix(" GiB").partition(" of ")
    assert amount(promised) == pytest.approx(mib / 1024, abs=0.501)
    assert amount(total) == pytest.approx(whole_mib / 1024, abs=0.501)
    assert tiles["Idle GPUs"] == [str(idle), f"of {len(cards)}"]
    placed = sum(not is_kept(uid) for uid in holdings)
    assert tiles["Pods placed"] == [str(placed), f"on {len(nodes)} nodes"]
    assert tiles["Pods waiting"][0] == str(len(waiting))
    broken = sum(not gpu.in_service for _, gpu in cards)
    said = f"{broken} GPUs out of service" if broken else "all GPUs in service"
    assert tiles["Nodes closed"][1] == said


def check_namespaces(rows: list[list[object]], story: RandomStory) -> None:
    engine = story.engine
    nodes = {node.name: node for node in engine.ledger.table.nodes}
    placed, milli, mib = Counter[str](), Counter[str](), Counter[str]()
    for uid, holding in engine.ledger.holdings.items():
        namespace = engine.placed[uid].pod.namespace
        placed[namespace] += 1
        milli[namespace] += charge_of(holding.placement, nodes[holding.placement.node]).gpu_milli
        mib[namespace] += sum(share.memory_mib for share in holding.placement.shares)
    waiting = Counter(entry.pod.namespace for entry in engine.queue.waiting())
    expected = [
        [name, placed[name], milli[name], mib[name], waiting[name]] for name in {*placed, *waiting}
    ]
    assert sorted(rows) == sorted(expected)


@pytest.mark.parametrize("seed", STATES)
def test_sums_namespaces_and_reasons_of_a_random_state_are_the_ledgers(
    window: Window, seed: int
) -> None:
    story = RandomStory(seed)
    for _ in range(30):
        story.step()
    engine = story.engine
    waiting = {entry.pod.uid: entry.pod for entry in engine.queue.waiting()}
    with served(FixedSource(story.picture())) as url:
        opened(window, f"{url}/namespaces")
        check_tiles(window.run(TILES), story)
        table = eventually(window, "document.querySelector('weft-namespaces')?.table()")
        check_namespaces(table[1], story)
        shown = "[...document.querySelectorAll('weft-namespaces tbody tr')]"
        texts = window.run(f"{shown}.map(row => [...row.cells].map(cell => cell.textContent))")
        assert [row[1] for row in texts] == [f"{row[1]:,}" for row in table[1]]
        assert [amount(row[2]) for row in texts] == pytest.approx(
            [row[2] / 1000 for row in table[1]], abs=0.00501
        )
        assert [row[4] for row in texts] == [f"{row[4]:,}" for row in table[1]]

        opened(window, f"{url}/waiting")
        reasons = window.run(REASONS)
        assert reasons.keys() == waiting.keys()
        for uid, pod in waiting.items():
            explained = explanation_of(engine, uid)
            assert explained is not None
            unsupported = pod.shape.constraints.unsupported
            assert reasons[uid] == (unsupported or explained.reason)
        counted = window.run("[...document.querySelectorAll('h2 b')].map(e => Number(e.innerText))")
        groups = Counter(row.group for row in story.picture().waiting.values())
        assert sorted(counted) == sorted(groups.values())
        said = window.run(TILES)["Pods waiting"][1]
        assert said == f"reasons: {len(groups)}"
        check(window, url)
