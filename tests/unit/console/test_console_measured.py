"""Pictures of GPUs that somebody measures: what is unknown is not 0."""

import numpy as np
import pytest

from weft.console.picture import PictureMaker, PodFacts
from weft.core.engine import Engine, SignalsChanged
from weft.core.framework import Profile
from weft.core.framework.signals import FRESH, MISSING, snapshot
from weft.core.policies.catalog import built_in
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
