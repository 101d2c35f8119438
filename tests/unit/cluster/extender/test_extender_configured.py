"""The configuration's `extender` section as routes and ports."""

import logging
from pathlib import Path

import pytest

from weft.cluster.config.form import ExtenderSettings
from weft.cluster.extender.routes import Route, default_routes, route_profiles
from weft.cluster.extender.setup import ListenerOptions, listening_of, routes_of, with_priority
from weft.cluster.http.access import AccessRule
from weft.core.policies.catalog import built_in
from weft.model import BadInputError

KNOWN = built_in().names()


def test_the_defaults_are_the_default_routes() -> None:
    settings = ExtenderSettings(interference_table="")
    assert routes_of(settings, KNOWN) == default_routes()
    assert listening_of(settings) == ListenerOptions()


@pytest.mark.parametrize(
    ("priority", "policy"),
    [("binpack", "elastic-binpack"), ("spread", "spread"), ("random", "random")],
)
def test_the_originals_priority(priority: str, policy: str) -> None:
    settings = with_priority(ExtenderSettings(interference_table=""), priority)  # type: ignore[arg-type]
    assert {route.path: route.policy for route in routes_of(settings, KNOWN)} == {
        "/weft": "",
        "/scheduler": policy,
        "/gpushare-scheduler": "gpushare",
    }


def gpushare(table: Path | str, known: tuple[str, ...], policy: str = "auto") -> Route:
    settings = ExtenderSettings(
        routes={"/gpushare-scheduler": policy}, interference_table=str(table)
    )
    (route,) = routes_of(settings, known)
    return route


def test_coscheml_decides_once_there_is_a_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "interference.json"
    with pytest.raises(BadInputError, match=r"interferenceTable.*there is no file"):
        gpushare(table, (*KNOWN, "coscheml"))
    table.write_text("{}")
    assert gpushare(table, (*KNOWN, "coscheml")).policy == "coscheml"
    assert gpushare(table, (*KNOWN, "coscheml"), "gpushare").policy == "gpushare", "as told"
    assert gpushare("", (*KNOWN, "coscheml")).policy == "gpushare"
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert gpushare(table, tuple(set(KNOWN) - {"coscheml"})).policy == "gpushare"
    assert "there is no policy coscheml; gpushare decides" in caplog.text


def test_coscheml_decides_where_interference_is_configured_elsewhere() -> None:
    settings = ExtenderSettings(interference_table="")
    policies = {route.path: route.policy for route in routes_of(settings, KNOWN, predicted=True)}
    assert policies["/gpushare-scheduler"] == "coscheml"
    assert policies["/scheduler"] == "elastic-binpack"


def test_nobody_has_to_have_the_usual_table() -> None:
    usual = ExtenderSettings().interference_table
    assert usual == "/data/interference.json"
    if not Path(usual).exists():
        assert gpushare(usual, KNOWN).policy == "gpushare"


def test_the_originals_paths_keep_the_originals_ways_whatever_decides() -> None:
    settings = ExtenderSettings(routes={"/scheduler": "fgd", "/mine": "schedulerName"})
    assert routes_of(settings, KNOWN) == [
        Route("/scheduler", "fgd", bind_failure=500, report="status"),
        Route("/mine"),
    ]


def test_a_profile_that_is_there_is_not_made_again() -> None:
    routes = [Route("/a", "weft"), Route("/b", "fgd"), Route("/c", "fgd"), Route("/d")]
    made = route_profiles(routes, built_in().create, have=["weft"])
    assert [profile.name for profile in made] == ["fgd"]


def test_files_of_tls() -> None:
    found = listening_of(
        ExtenderSettings(
            port=1,
            original_ports=True,
            certificate_file="/c",
            key_file="/k",
            client_authority_file="/a",
        )
    )
    assert found == ListenerOptions("127.0.0.1", 1, True, Path("/c"), Path("/k"), Path("/a"))
    assert found.door == AccessRule(certificate=True)
    assert listening_of(ExtenderSettings()).door == AccessRule()
    assert listening_of(ExtenderSettings(anyone_may_bind=True)).door == AccessRule(anyone=True)
