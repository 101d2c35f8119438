"""Profiles that a kube-scheduler takes are not scheduled here, and need the extender."""

from pathlib import Path

import pytest

from weft.cluster.config.form import (
    Configuration,
    ExtenderSettings,
    PolicySettings,
    ProfileSettings,
)
from weft.cluster.config.read import read
from weft.host.plan import Hosting, taken_here
from weft.model import BadInputError

PROFILES = (
    ProfileSettings("weft", (PolicySettings("fgd"),)),
    ProfileSettings("packed", (PolicySettings("best-fit"),), via="extender"),
)


def test_only_those_via_scheduler_are_taken() -> None:
    config = Configuration(profiles=PROFILES, extender=ExtenderSettings(enabled=True))
    assert taken_here(config, Hosting()) == ("weft",)
    assert taken_here(config, Hosting(schedules=False)) == ()


def test_without_an_extender_nobody_would_take_them() -> None:
    with pytest.raises(BadInputError, match=r"weft\.yaml: profiles: packed is via: extender"):
        taken_here(Configuration(profiles=PROFILES), Hosting(where="weft.yaml"))


def test_another_word_is_refused_with_the_two_there_are(tmp_path: Path) -> None:
    path = tmp_path / "weft.yaml"
    path.write_text(
        "apiVersion: weft.dev/v1\nkind: WeftConfiguration\nprofiles:\n"
        "- {schedulerName: weft, via: extendr, policies: [{name: fgd}]}\n"
    )
    with pytest.raises(BadInputError, match="did you mean 'extender'"):
        read(path)
