"""Pictures of GPUs that somebody measures: what is unknown is not 0."""

import numpy as np
import pytest

from weft.console.deltas import between
from weft.console.picture import Picture, PictureMaker, PodFacts
from weft.core.engine import Engine, SignalsChanged
from weft.core.framework import Profile
from weft.core.framework.signals import FRESH, MISSING, snapshot
from weft.core.policies.catalog import built_in
from weft.model import Placement, Share
from weft.testing import node


@pytest.mark.parametrize(("state", "shown"), [(FRESH, 71), (MISSING, None)])
def test_how_hot_a_gpu_is_is_shown_where_it_is_known(state: int, shown: int | None) -> None:
    engine = Engine([Profile("weft", [built_in().create("best-fit")])], [node("n1", gpus=2)])
    column = np.array([71.2]), np.array([state], np.int8)
    told = snapshot(1, 0, [("n1", 0)], {"temperature_c": column})
    engine.handle(SignalsChanged(told), 0)
    picture = PictureMaker(engine).picture(1.0, lambda uid: PodFacts("ns", uid))
    assert picture.gpus["n1/0"].celsius == shown
    assert picture.gpus["n1/1"].celsius is None
    assert picture.gpus["n1/0"].used_mib is None


def test_only_pods_whose_idle_memory_moved_by_a_step_are_sent_again() -> None:
    engine = Engine([Profile("weft", [built_in().create("best-fit")])], [node("n1", gpus=2)])
    for at, uid in enumerate("ab"):
        engine.ledger.adopt(Placement(uid, "n1", (Share(0, at, 8_000, 300),)))
    maker = PictureMaker(engine)

    def measured(a_mib: int, b_mib: int) -> Picture:
        engine.ledger.set_idle({"a": (a_mib,), "b": (b_mib,)})
        return maker.picture(1.0, lambda uid: PodFacts("ns", uid))

    began = measured(5_000, 5_000)
    assert began.pods["a"].shares[0].idle_mib == 4_864
    little = measured(5_001, 4_999)
    assert not between(began, little).pods.put
    assert little.pods["a"] is began.pods["a"]  # made once
    assert little.gpus["n1/0"].idle_mib == 5_001
    more = measured(5_002, 6_000)
    assert between(little, more).pods.put.keys() == {"b"}
    assert more.pods["b"].shares[0].idle_mib == 5_888
    assert more == PictureMaker(engine).picture(1.0, lambda uid: PodFacts("ns", uid))
