"""Makes Weft's image where no base image can be pulled: of Debian's packages and the wheel.

    make_image.py FILE.tar[.gz] [--tag NAME:TAG]

FILE is a docker-archive, for `ctr -n k8s.io images import`, `docker load` or `skopeo copy`. It has
Python, Weft with the extra `agent`, certificates of authorities, and no shell. As the Dockerfile's
it runs as user 65532, writes nothing outside mounted volumes, and starts `weft-compat`.

Needs root, the Debian package mmdebstrap, and what `make venv` has made.
"""

import argparse
import hashlib
import io
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".venv" / "bin" / "uv"
SUITE = "bookworm"
PYTHON = "python3.11"
PACKAGES = (f"{PYTHON}-minimal", f"lib{PYTHON}-stdlib", "ca-certificates", "libstdc++6", "tzdata")
SITE = f"usr/local/lib/{PYTHON}/dist-packages"
COMMANDS = {
    "weft": "weft.cli.main:main",
    "weft-compat": "weft.cli.compat:main",
    "kubectl-weft": "weft.cli.main:main",
    "kubectl-inspect-gpushare": "weft.cli.gpushare_inspect:main",
}
COMPAT = "usr/local/bin/weft-compat"
OTHER_NAMES = (
    "usr/bin/elastic-gpu-scheduler",
    "usr/bin/elastic-gpu-agent",
    "usr/bin/gpushare-sche-extender",
    "usr/bin/gpushare-device-plugin-v2",
    "usr/bin/genius",
)
"""Programs of the originals' images, as their manifests name them."""
USER = 65532
ABOUT_PACKAGES = "var/lib/dpkg/status.d"
"""Folder with a file for each package, as images without dpkg have it: scanners read it."""
UNUSED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
    "var/cache/apt",
)


def main() -> int:
    """Make it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--tag", default="weft-gpu:latest")
    parser.add_argument("--cache", type=Path, help="Folder where what is not Weft's own is kept.")
    options = parser.parse_args()
    lacking = why_not()
    if lacking:
        sys.stderr.write(f"make_image: {lacking}\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="weft-image-") as name:
        folder = Path(name)
        tree = folder / "tree"
        kept = options.cache / f"{_pinned()}.tar" if options.cache else None
        if kept is not None and kept.exists():
            _run("tar", "--extract", "--file", kept, "--directory", folder)
        else:
            _packages(tree)
            _requirements(tree / SITE, folder)
            _settle(tree)
            _compile(tree, tree / SITE, tree / "usr" / "lib" / PYTHON)
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                _run("tar", "--create", "--file", f"{kept}.partial", "--directory", folder, "tree")
                Path(f"{kept}.partial").replace(kept)
        _weft(tree / SITE, folder)
        _compile(tree, tree / SITE / "weft")
        size = write_archive(tree, options.file, options.tag)
    sys.stderr.write(f"{options.file}: {options.tag}, {size / 2**20:.0f} MiB unpacked\n")
    return 0


def why_not() -> str:
    """What is missing here; "" where an image can be made."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("mmdebstrap") is None:
        return "no mmdebstrap: apt-get install mmdebstrap"
    return "" if UV.exists() else "no .venv/bin/uv: run make venv"


def _packages(tree: Path) -> None:
    """Debian's packages with what they need, unpacked; their scripts do not run."""
    include = ",".join(PACKAGES)
    about = f'"$1"/{ABOUT_PACKAGES}'
    describe = f'dpkg-deb --field "$deb" > {about}/"$(dpkg-deb --field "$deb" Package)"'
    archives = '"$1"/var/cache/apt/archives/*.deb'
    hook = f"mkdir -p {about}; for deb in {archives}; do {describe}; done"
    _run(
        "mmdebstrap",
        "--mode=root",
        "--variant=extract",
        "--quiet",
        f"--include={include}",
        f"--extract-hook={hook}",
        SUITE,
        tree,
    )


def _pinned() -> str:
    """A name for all that is not Weft's own: another lock or another script is another name."""
    pins = (ROOT / "uv.lock").read_bytes() + Path(__file__).read_bytes()
    return hashlib.sha256(pins).hexdigest()[:16]


def _requirements(site: Path, folder: Path) -> None:
    """The locked versions of what Weft needs."""
    locked = folder / "requirements.txt"
    # Nothing is drawn in a cluster, and matplotlib weighs 80 MB.
    export = ("export", "--frozen", "--no-dev", "--extra", "agent", "--prune", "matplotlib")
    _run(UV, *export, "--no-emit-project", "--quiet", "--project", ROOT, "--output-file", locked)
    _install(site, "--only-binary", ":all:", "--require-hashes", "-r", locked)


def _weft(site: Path, folder: Path) -> None:
    """Weft itself, as a wheel of this checkout."""
    wheels = folder / "wheels"
    _run(UV, "build", "--quiet", "--wheel", "--out-dir", wheels, ROOT)
    (wheel,) = wheels.glob("*.whl")
    _install(site, wheel)
    shutil.rmtree(site / "bin", ignore_errors=True)
    (about,) = site.glob("weft_gpu-*.dist-info")
    for name in ("direct_url.json", "uv_cache.json", "RECORD"):  # the wheel's folder and times
        (about / name).unlink(missing_ok=True)


def _install(site: Path, *what: object) -> None:
    command = (UV, "pip", "install", "--quiet", "--target", site, "--python-version", "3.11")
    _run(*command, "--no-deps", "--link-mode", "copy", *what)


def _compile(tree: Path, *folders: Path) -> None:
    """Bytecode, for the root may not be written, without times, for those differ."""
    mode = ("--invalidation-mode", "unchecked-hash")
    _run(sys.executable, "-m", "compileall", "-q", *mode, "-s", tree, "-p", "/", *folders)


def _settle(tree: Path) -> None:
    """Leave out what nothing reads, and write what packages' scripts would have."""
    for name in UNUSED:
        shutil.rmtree(tree / name, ignore_errors=True)
    shutil.rmtree(tree / SITE / "bin", ignore_errors=True)
    for tests in [*(tree / SITE).glob("numpy/**/tests"), *(tree / SITE).glob("scipy/**/tests")]:
        shutil.rmtree(tests, ignore_errors=True)
    bundle = b"".join(
        path.read_bytes().rstrip() + b"\n"
        for path in sorted((tree / "usr/share/ca-certificates").rglob("*.crt"))
    )
    _write(tree / "etc/ssl/certs/ca-certificates.crt", bundle)
    _write(tree / "etc/passwd", f"root:x:0:0::/:\nweft:x:{USER}:{USER}::/:\n".encode())
    _write(tree / "etc/group", f"root:x:0:\nweft:x:{USER}:\n".encode())
    for name, target in COMMANDS.items():
        module, _, function = target.partition(":")
        lines = (f"#!/usr/bin/{PYTHON}", f"from {module} import {function}", f"{function}()\n")
        _write(tree / "usr/local/bin" / name, "\n".join(lines).encode(), 0o755)
    for name in OTHER_NAMES:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).symlink_to(f"/{COMPAT}")
    for name in ("usr/bin/python3",):
        (tree / name).unlink(missing_ok=True)
        (tree / name).symlink_to(PYTHON)


def write_archive(tree: Path, file: Path, tag: str) -> int:
    """The docker-archive of one layer; the same tree makes the same bytes. Its size unpacked."""
    held = io.BytesIO()
    size = 0
    with tarfile.open(fileobj=held, mode="w") as layer:
        for path in sorted(tree.rglob("*")):
            info = layer.gettarinfo(str(path), str(path.relative_to(tree)))
            info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
            if stat.S_ISREG(path.lstat().st_mode) and info.isreg():
                size += info.size
                with path.open("rb") as content:
                    layer.addfile(info, content)
            elif not stat.S_ISCHR(path.lstat().st_mode):
                layer.addfile(info)
    data = held.getvalue()
    config = json.dumps(_config(hashlib.sha256(data).hexdigest())).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": ["layer.tar"]}]
    partial = file.with_name(f".{file.name}.partial")
    mode = "w:gz" if file.suffix == ".gz" else "w"
    with tarfile.open(partial, mode) as archive:  # type: ignore[call-overload]
        _add(archive, "layer.tar", data)
        _add(archive, name, config)
        _add(archive, "manifest.json", json.dumps(manifest).encode())
    partial.replace(file)
    return size


def _config(layer: str) -> dict[str, object]:
    machine = platform.machine()
    return {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": [
                "PATH=/usr/local/bin:/usr/bin:/bin",
                "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
                "PYTHONDONTWRITEBYTECODE=1",
                "OMP_NUM_THREADS=1",
            ],
            "Entrypoint": [f"/{COMPAT}"],
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
    }


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def _run(*command: object) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "0", "UV_NO_PROGRESS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([str(word) for word in command], check=True, env=environment)


if __name__ == "__main__":
    raise SystemExit(main())
