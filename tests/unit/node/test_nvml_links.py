"""How cards are connected, through NVML (a fake) and by a fake machine's file."""

from pathlib import Path

import pytest
from test_fake_devices import A100, written

from fakes.nvml import FakeNvml, FakeNvmlCard
from weft.model import BadInputError
from weft.model.gpu_links import GpuLinks
from weft.node.devices.fake import FakeReader
from weft.node.devices.nvml import NvmlReader


def read(root: Path, *cards: FakeNvmlCard) -> GpuLinks | None:
    nvml = FakeNvml(*cards)
    reader = NvmlReader(lambda: nvml, root=root)
    reader.devices()
    return reader.links()


def test_bridged_pairs_and_the_path_between_them(tmp_path: Path) -> None:
    """Two pairs, each bridged by four NVLinks; between them PCIe, a switch or the sockets."""
    a, b, c, d = (FakeNvmlCard(number, "NVIDIA A100-PCIE-40GB") for number in range(4))
    for one, other in ((a, b), (c, d)):
        one.nvlinks, other.nvlinks = [other] * 4, [one] * 4
    for one, other in ((a, c), (c, a)):
        one.near[other.uuid] = 10
    numa = tmp_path / "sys" / "bus" / "pci" / "devices"
    for card, node in ((a, 0), (b, 0), (c, 1), (d, 1)):
        folder = numa / card.bus[4:].lower()
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    found = read(tmp_path, a, b, c, d)
    assert found is not None
    assert found.paths == ("X NV4 PIX SYS", "NV4 X SYS SYS", "PIX SYS X NV4", "SYS SYS NV4 X")
    assert (found.indexes, found.nvlink_generation) == ((0, 1, 2, 3), 3)
    assert found.numa == (0, 0, 1, 1)


def test_links_to_switches_reach_every_card(tmp_path: Path) -> None:
    cards = [FakeNvmlCard(number) for number in range(3)]
    for card in cards:
        card.nvlinks = [None] * 18
    found = read(tmp_path, *cards)
    assert found is not None
    assert found.paths == ("X NV18 NV18", "NV18 X NV18", "NV18 NV18 X")
    assert found.nvlink_generation == 4


def test_what_one_end_alone_knows_and_a_lost_card_are_no_links(tmp_path: Path) -> None:
    a, b = FakeNvmlCard(0), FakeNvmlCard(1)
    a.nvlinks = [b]
    assert read(tmp_path, a, b) is None
    assert read(tmp_path, a) is None
    a.nvlinks, b.error = [], 15
    nvml = FakeNvml(a, b)
    reader = NvmlReader(lambda: nvml, root=tmp_path)
    reader.devices()
    assert reader.links() is None


def test_a_fake_machines_file_says_its_links(tmp_path: Path) -> None:
    text = f"gpus: [{A100}, count: 2}}]\nlinks: "
    found = FakeReader(written(tmp_path, text + "['X NV12', 'NV12 X']"), "n1").links()
    assert found == GpuLinks((0, 1), ("X NV12", "NV12 X"), 3)
    with pytest.raises(BadInputError, match="NV12 one way, PIX the other"):
        FakeReader(written(tmp_path, text + "['X NV12', 'PIX X']"), "n1")
