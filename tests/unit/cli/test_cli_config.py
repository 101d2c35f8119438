"""`weft config check`, and addresses on the command line: errors are one line and exit 1."""

from pathlib import Path

import pytest
from commands import Weft

HEAD = "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"


def refused(weft: Weft, *words: object) -> str:
    said = weft(*words)
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1), said
    assert said.err.startswith("weft: error: ")
    return said.err.removeprefix("weft: error: ").strip()


def test_check_reads_certificates_as_the_extender_would(weft: Weft, tmp_path: Path) -> None:
    file, pem = tmp_path / "weft.yaml", tmp_path / "tls.pem"
    pem.write_text("no certificate\n")
    file.write_text(f"{HEAD}extender: {{certificateFile: {pem}, keyFile: {pem}}}\n")
    assert refused(weft, "config", "check", file).startswith(
        f"{file}: extender: {pem}, {pem}: are not "
    )


def test_check_reads_what_proves_us_to_a_metrics_server(weft: Weft, tmp_path: Path) -> None:
    pem, file = tmp_path / "some.pem", tmp_path / "weft.yaml"
    pem.write_text("no certificate\n")
    file.write_text(f"{HEAD}telemetry: {{certificateFile: {pem}, keyFile: {pem}}}\n")
    said = weft("config", "check", file)
    assert said.code == 1
    assert f"{file}: telemetry.certificateFile: client certificate and key do not" in said.err
    pem.write_text("")
    file.write_text(f"{HEAD}telemetry: {{url: 'http://p', bearerTokenFile: {pem}}}\n")
    said = weft("config", "check", file)
    assert said.code == 1
    assert "telemetry.bearerTokenFile: the token file" in said.err


def test_check_looks_for_the_table_of_interference(weft: Weft, tmp_path: Path) -> None:
    file = tmp_path / "weft.yaml"
    file.write_text(f"{HEAD}extender: {{enabled: true, interferenceTable: /no/such}}\n")
    assert "extender.interferenceTable: there is no file /no/such" in refused(
        weft, "config", "check", file
    )


def test_check_says_good(weft: Weft, tmp_path: Path) -> None:
    file = tmp_path / "weft.yaml"
    file.write_text(HEAD)
    said = weft("config", "check", file)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"{file}: valid; profiles weft, ")


URLS = [
    "http://[::1",
    "http://h:99999",
    "http://h:0",
    "http://h:x",
    "http://",
    "http://a b",
    "http://h?x=1",
    "http://h#x",
    "http://u:p@h",
    "ftp://h",
    "h",
    "http://a..b",
    "http://h/a b",
]


def shown(url: str) -> str:
    """The URL without its user and password, as errors show it."""
    return url.replace("u:p@", "***@")


@pytest.mark.parametrize("url", URLS)
def test_explain_refuses_what_is_no_url(weft: Weft, url: str) -> None:
    said = refused(weft, "explain", "pod", "x", "--url", url)
    assert said.startswith(f"--url: {shown(url)!r} is not a")


@pytest.mark.parametrize("url", [*URLS, ""])
def test_extender_config_refuses_what_is_no_url(weft: Weft, url: str) -> None:
    said = refused(weft, "extender", "config", "--url", url)
    assert said.startswith(f"--url: {shown(url)!r} is not a")


@pytest.mark.parametrize("name", ["a/b/c", "", "/", "a/", "/a"])
def test_explain_refuses_what_names_no_pod(weft: Weft, name: str) -> None:
    told = refused(weft, "explain", "pod", name, "--url", "http://127.0.0.1:1")
    assert told == f"pod: {name!r} is not a pod's name; write NAMESPACE/NAME or NAME"


@pytest.mark.parametrize("words", [("--weight", 2**31), ("--weight", 0), ("--timeout-s", 10**12)])
def test_extender_config_has_numbers_that_kube_scheduler_reads(
    weft: Weft, words: tuple[object, ...]
) -> None:
    said = weft("extender", "config", *words)
    assert (said.code, said.out) == (2, "")
    assert str(words[0]) in said.err
