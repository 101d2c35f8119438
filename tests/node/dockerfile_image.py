"""Weft's image as the Dockerfile makes it, built by buildah: no daemon, no registry of images.

BASE is made of Debian's packages; Python's come from where this machine gets them.
"""

import hashlib
import os
import shutil
import ssl
import subprocess
import tempfile
from pathlib import Path

import pytest
import weft_image

BASE = "weft.test/base:1"
_PACKAGES = (
    *("python3.11", "python3.11-venv", "ca-certificates", "libstdc++6", "tzdata"),
    *("dash", "coreutils", "findutils"),  # what the Dockerfile's own commands need
)
_UNREAD = ("usr/share/doc", "usr/share/man", "usr/share/locale")


def make(file: Path, tag: str, folder: Path) -> Path:
    """Write the docker-archive; `folder` is for what buildah keeps. Skipped where Debian's packages
    buildah and mmdebstrap cannot be had, but not in CI."""
    for program in ("buildah", "mmdebstrap"):
        if shutil.which(program) is None:
            lacking = f"no {program}: apt-get install {program}"
            assert os.environ.get("CI") != "true", lacking
            pytest.skip(lacking)
    build = _Buildah(folder)
    build.base(_base())
    # Without the kernel's namespaces: these tests may themselves run in a container.
    options = ("--isolation", "chroot", "--build-arg", f"BASE={BASE}", "--tag", tag)
    build("build", *options, weft_image.ROOT)
    build("push", "--quiet", tag, f"docker-archive:{file}:{tag}")
    return file


class _Buildah:
    """The command, with images of its own below a folder."""

    def __init__(self, folder: Path) -> None:
        self._own = ("--root", folder / "images", "--runroot", folder / "run")

    def __call__(self, *words: object) -> str:
        command = [str(word) for word in ("buildah", *self._own, *words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout.strip()

    def base(self, tree: Path) -> None:
        """The image `BASE`; it trusts whom this machine trusts, where Python's packages are."""
        there = "/etc/ssl/certs/ca-certificates.crt"
        container = self("from", "scratch")
        self("add", "--quiet", container, tree, "/")
        trusted = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
        if trusted and Path(trusted).exists():
            self("copy", "--quiet", container, trusted, there)
        known = [f"--env={name}={there}" for name in ("SSL_CERT_FILE", "PIP_CERT")]
        self("config", *known, container)
        self("commit", "--quiet", "--rm", container, BASE)


def _base() -> Path:
    """Debian's packages as a tar, kept for later runs."""
    pins = hashlib.sha256(" ".join((*_PACKAGES, *_UNREAD)).encode()).hexdigest()[:16]
    kept = weft_image.cache() / f"base-{pins}.tar"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_name(f"{kept.name}.partial")
        with tempfile.TemporaryDirectory(prefix="weft-base-") as tree:
            options = ("--mode=root", "--variant=extract", "--quiet")
            packages = f"--include={','.join(_PACKAGES)}"
            _run("mmdebstrap", *options, packages, "bookworm", tree)
            unread = [f"--exclude=./{name}" for name in _UNREAD]
            _run("tar", "--create", "--file", partial, *unread, "--directory", tree, ".")
        partial.replace(kept)
    return kept


def _run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, timeout=600)
