"""Certificates for servers and clients of tests, made with openssl; each is its own authority."""

import subprocess
from pathlib import Path

_MADE = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"


def self_signed(folder: Path, *names: str) -> Path:
    """Makes `name`.pem and `name`.key of each name in this folder, for 127.0.0.1; the folder."""
    for name in names:
        own = f"-keyout {name}.key -out {name}.pem -subj /CN={name}"
        command = f"openssl {_MADE} {own} -addext subjectAltName=IP:127.0.0.1"
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder
