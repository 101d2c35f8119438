"""The `extender` section: strict, and told by field."""

import pytest

from weft.cluster.config.form import Configuration
from weft.cluster.config.made_profiles import profiles
from weft.cluster.config.read import decode
from weft.core.policies.catalog import built_in
from weft.model import BadInputError

HEAD = "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"


def config(text: str) -> Configuration:
    return decode(f"{HEAD}extender: {{{text}}}".encode(), "weft.yaml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("path: /weft", "weft.yaml: extender: Object contains unknown field `path`"),
        ("port: 70000", "weft.yaml: extender.port: 70000 is not a port"),
        ("routes: {weft: fgd}", "weft.yaml: extender.routes[weft]: 'weft' is not a path"),
        ("routes: {/weft/: fgd}", "weft.yaml: extender.routes[/weft/]: '/weft/' is not a path"),
        ("routes: {/: fgd}", "weft.yaml: extender.routes[/]: '/' is not a path"),
        ("routes: {/weft: ''}", "weft.yaml: extender.routes[/weft]: is empty; write a policy"),
        ("routes: {}", "weft.yaml: extender.routes: is empty; name at least one path"),
        ("certificateFile: /c", "weft.yaml: extender.certificateFile: belongs together"),
        ("keyFile: /k", "weft.yaml: extender.certificateFile: belongs together"),
        ("clientAuthorityFile: /a", "weft.yaml: extender.clientAuthorityFile: needs a certificate"),
        ("enabled: true, address: 0.0.0.0", "weft.yaml: extender.address: 0.0.0.0 lets anyone who"),
        ("enabled: true, address: weft.local", "weft.yaml: extender.address: weft.local lets"),
        (
            "enabled: true, address: '::', certificateFile: /c, keyFile: /k",
            "weft.yaml: extender.address: :: lets anyone who reaches it bind any pod; write",
        ),
    ],
)
def test_a_wrong_section_is_told_by_field(text: str, told: str) -> None:
    with pytest.raises(BadInputError) as error:
        config(text)
    assert str(error.value).startswith(told)


def test_a_route_names_a_policy_or_a_profile() -> None:
    good = config(
        "routes: {/a: schedulerName, /b: auto, /c: fgd, /d: genius-scheduler, /e/f: weft}"
    )
    assert len(profiles(good, built_in())) == 5
    with pytest.raises(BadInputError, match=r"weft.yaml: extender.routes\[/a\].*nobody.*fgd"):
        profiles(config("routes: {/a: nobody}"), built_in(), "weft.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "enabled: true",
        "enabled: true, address: '::1'",
        "enabled: true, address: localhost",
        "address: 0.0.0.0",
        "enabled: true, address: 0.0.0.0, anyoneMayBind: true",
        "enabled: true, address: 0.0.0.0, certificateFile: /c, keyFile: /k, "
        "clientAuthorityFile: /a",
    ],
)
def test_a_shut_door_is_good_and_so_is_one_that_is_open_in_so_many_words(text: str) -> None:
    assert config(text)
