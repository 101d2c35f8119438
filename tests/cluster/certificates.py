"""A certificate authority for one test run, made with the openssl command."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

DAYS = "2"


class Pair(NamedTuple):
    """The files of a certificate and of its private key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates for servers on this machine and for users. All keys are P-256."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.pair = Pair(folder / "ca.crt", folder / "ca.key")
        self.new_key(self.pair.key)
        _openssl(
            *("req", "-x509", "-new", "-key", self.pair.key, "-out", self.pair.certificate),
            *("-subj", "/CN=weft-test-ca", "-days", DAYS),
        )

    def new_key(self, path: Path) -> Path:
        """A private key by itself, as service accounts' tokens are signed with."""
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
        return path

    def server(self, name: str, *addresses: str) -> Pair:
        """For a server at 127.0.0.1 and localhost, and at more addresses."""
        names = ",".join(("DNS:localhost", *(f"IP:{one}" for one in ("127.0.0.1", *addresses))))
        return self._sign(name, f"/CN={name}", "serverAuth", f"subjectAltName={names}")

    def user(self, name: str, *groups: str) -> Pair:
        """For a client that Kubernetes knows by this name, in these groups."""
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={name}"
        return self._sign(name, subject, "clientAuth")

    def _sign(self, name: str, subject: str, usage: str, *more: str) -> Pair:
        stem = name.replace(":", "-").replace("/", "-")
        pair = Pair(self.folder / f"{stem}.crt", self.folder / f"{stem}.key")
        request, extensions = self.folder / f"{stem}.csr", self.folder / f"{stem}.ext"
        self.new_key(pair.key)
        _openssl("req", "-new", "-key", pair.key, "-subj", subject, "-out", request)
        wanted = ("keyUsage=digitalSignature", f"extendedKeyUsage={usage}", *more)
        extensions.write_text("\n".join(wanted) + "\n")
        _openssl(
            *("x509", "-req", "-in", request, "-out", pair.certificate, "-days", DAYS),
            *("-CA", self.pair.certificate, "-CAkey", self.pair.key, "-CAcreateserial"),
            *("-extfile", extensions),
        )
        return pair


def available() -> bool:
    """Tells whether there is an openssl command."""
    return shutil.which("openssl") is not None


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"openssl {' '.join(map(str, arguments))}: {done.stderr.strip()}")
