"""Files that could not work: each is refused with the file, the field, the value and a way out."""

from pathlib import Path

import pytest

from weft.cluster.config.form import MOST_WEIGHT, Configuration
from weft.cluster.config.read import decode, read
from weft.core.policies.catalog import built_in
from weft.model import BadInputError
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS

HEAD = "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"


def refused(text: str) -> str:
    with pytest.raises(BadInputError) as error:
        decode((HEAD + text).encode(), "weft.yaml")
    told = str(error.value)
    assert "\n" not in told
    return told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "lease: {name: a}\nseed: 3\nlease: {enabled: false}\n",
            "weft.yaml: line 5, lease: is written twice (first in line 3); keep one",
        ),
        (
            "lease:\n  name: a\n  enabled: true\n  name: b\n",
            "weft.yaml: line 6, name: is written twice (first in line 4); keep one",
        ),
        (
            "inventory:\n- count: 1\n  memoryMiB: 10\n  count: 2\n",
            "weft.yaml: line 6, count: is written twice (first in line 4); keep one",
        ),
    ],
)
def test_a_key_written_twice_is_told_by_line(text: str, told: str) -> None:
    assert refused(text) == told


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "profiles: [{schedulerName: a, policies: [{name: fgd, options: &o {x: *o}}]}]",
        "seed: " + "[" * 5_000,
        "seed: 2020-99-99",
        "? [1, 2]\n: 3",
        "seed: 1\n---\nseed: 2",
        "seed: 99999999999999999999",
        "seed: 0x" + "f" * 5_000,
        "seed: " + "9" * 5_000,
        "seed: !!python/object:os.system x",
        "seed: !!int x",
        "1: 2",
    ],
)
def test_strange_yaml_is_one_line(text: str) -> None:
    assert refused(text).startswith("weft.yaml: ")


def test_merged_keys_may_be_overridden() -> None:
    found = decode((HEAD + "lease:\n  <<: {name: a, enabled: false}\n  name: b\n").encode(), "w")
    assert (found.lease.name, found.lease.enabled) == ("b", False)


@pytest.mark.parametrize("name", ["Bad Name/..", "", "-a", "a-", "A", "a..b", "x" * 254, "a\\n"])
def test_a_lease_has_a_name_that_kubernetes_takes(name: str) -> None:
    assert refused(f'lease: {{name: "{name}"}}').startswith("weft.yaml: lease.name: ")


@pytest.mark.parametrize("name", ["Bad", "", "a.b", "kube_system", "x" * 64, "../x"])
def test_a_namespace_is_one_label(name: str) -> None:
    assert refused(f'lease: {{namespace: "{name}"}}').startswith("weft.yaml: lease.namespace: ")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("client.qps", ".nan"),
        ("client.qps", ".inf"),
        ("client.qps", "1e300"),
        ("client.burst", "-1"),
        ("client.burst", "99999999999999"),
        ("client.bindsInFlight", "0"),
        ("client.bindsInFlight", "10000000"),
        ("client.requestTimeoutSeconds", "-3"),
        ("client.requestTimeoutSeconds", "9999999999"),
        ("lease.durationSeconds", "-1"),
        ("lease.renewSeconds", ".nan"),
        ("lease.renewSeconds", "-.inf"),
        ("lease.renewSeconds", "-1"),
        ("http.port", "-1"),
        ("http.port", "65536"),
        ("extender.port", "-1"),
        ("events.intervalSeconds", ".nan"),
        ("events.intervalSeconds", ".inf"),
        ("events.intervalSeconds", "-1"),
        ("limits.warmUpSeconds", "-1"),
        ("limits.warmUpSeconds", ".nan"),
        ("limits.warmUpSeconds", "86401"),
        ("limits.stableSeconds", "0"),
        ("limits.stableSeconds", "301"),
        ("seed", "-1"),
    ],
)
@pytest.mark.parametrize("enabled", ["true", "false"])
def test_a_number_that_cannot_be(field: str, value: str, enabled: str) -> None:
    section, _, name = field.rpartition(".")
    more = f", enabled: {enabled}" if section == "lease" else ""
    text = f"{section}: {{{name}: {value}{more}}}" if section else f"{name}: {value}"
    assert refused(text).startswith(f"weft.yaml: {field}: ")


@pytest.mark.parametrize("weight", ["-1", "1000001", "9223372036854775807"])
def test_a_weight_can_be_added_up(weight: str) -> None:
    text = f"profiles: [{{schedulerName: a, policies: [{{name: fgd, weight: {weight}}}]}}]"
    assert refused(text).startswith("weft.yaml: profiles[0].policies[0].weight: ")


def test_the_largest_weights_fit_the_engine_s_64_bits() -> None:
    policies = len(built_in().names())
    assert 100 * MOST_WEIGHT * policies * 1_000 < 2**63


@pytest.mark.parametrize("value", [0, -1, MOST_GPUS + 1])
def test_a_node_has_so_many_cards_at_most(value: int) -> None:
    told = refused(f"inventory: [{{count: {value}, memoryMiB: 10}}]")
    assert told.startswith(f"weft.yaml: inventory[0].count: {value:,} ")


@pytest.mark.parametrize("value", [0, -1, MOST_GPU_MIB + 1])
def test_a_card_has_so_much_memory_at_most(value: int) -> None:
    told = refused(f"inventory: [{{count: 1, memoryMiB: {value}}}]")
    assert told.startswith(f"weft.yaml: inventory[0].memoryMiB: {value:,} ")


@pytest.mark.parametrize("section", ["http", "extender"])
@pytest.mark.parametrize(
    "address", ["", "not an address", "999.1.1.1", "http://x", "a:80", "[::1]", "a/b", "a..b"]
)
def test_an_address_is_an_ip_or_a_host(section: str, address: str) -> None:
    told = refused(f'{section}: {{address: "{address}"}}')
    assert told.startswith(f"weft.yaml: {section}.address: {address!r} ")
    assert "0.0.0.0" in told


@pytest.mark.parametrize("address", ["127.0.0.1", "::", "::1", "localhost", "node-1.example.com"])
def test_good_addresses(address: str) -> None:
    assert decode(f'{HEAD}http: {{address: "{address}"}}'.encode(), "w").http.address == address


@pytest.mark.parametrize(
    "text",
    [
        "http: {port: 8000}\nextender: {enabled: true, port: 8000}",
        "http: {port: 39999}\nextender: {enabled: true}",
        "http: {port: 12345}\nextender: {enabled: true, port: 8000, originalPorts: true}",
        'http: {port: 8000, address: "127.0.0.1"}\nextender: {enabled: true, port: 8000}',
    ],
)
def test_one_port_is_not_listened_on_twice(text: str) -> None:
    told = refused(text)
    assert told.startswith("weft.yaml: http.port: ")
    assert "extender." in told


@pytest.mark.parametrize(
    "text",
    [
        "http: {port: 0}\nextender: {enabled: true, port: 0}",
        "http: {port: 39999}",
        'http: {port: 8000, address: "127.0.0.1"}\n'
        'extender: {enabled: true, port: 8000, address: "127.0.0.2"}',
        "extender: {enabled: true, port: 39999, originalPorts: true}",
    ],
)
def test_ports_that_do_not_meet(text: str) -> None:
    assert isinstance(decode((HEAD + text).encode(), "w"), Configuration)


@pytest.mark.parametrize("missing", ["certificateFile", "keyFile", "clientAuthorityFile"])
def test_a_file_that_is_named_is_there(tmp_path: Path, missing: str) -> None:
    names = {}
    for field in ("certificateFile", "keyFile", "clientAuthorityFile"):
        names[field] = tmp_path / f"{field}.pem"
        if field != missing:
            names[field].write_text("")
    told = ", ".join(f"{field}: {path}" for field, path in names.items())
    path = tmp_path / "weft.yaml"
    path.write_text(f"{HEAD}extender: {{{told}}}\n")
    with pytest.raises(BadInputError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: extender.{missing}: {names[missing]} cannot be")
