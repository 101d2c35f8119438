"""The Dockerfile, read as docker would, beside make_image.py: both make the same image.

No base image can be pulled where these tests run, so docker never builds it here.
"""

import importlib.util
import re
import tomllib
from pathlib import Path, PurePosixPath
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
STEPS = [line.split(None, 1) for line in TEXT.splitlines() if re.match(r"[A-Z]+ ", line)]

IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


def steps(kind: str) -> list[str]:
    """The arguments of the instructions of a kind."""
    return [rest for name, rest in STEPS if name == kind]


def make_image() -> ModuleType:
    """deploy/image/make_image.py, which is no module of a package."""
    path = ROOT / "deploy" / "image" / "make_image.py"
    spec = importlib.util.spec_from_file_location("make_image", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_every_path_that_it_copies_is_there() -> None:
    copied = [words.split() for words in steps("COPY")]
    from_here = [word for words in copied if "--from" not in words[0] for word in words[:-1]]
    assert from_here
    for name in from_here:
        assert (ROOT / name).exists(), name
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())
    read_by_the_build = {wanted["project"]["readme"], "LICENSE", "pyproject.toml", "src"}
    assert read_by_the_build <= set(from_here)
    let_through = {line[1:] for line in IGNORED if line.startswith("!")}
    assert "*" in IGNORED
    assert set(from_here) <= let_through


def test_what_a_later_stage_copies_is_made_by_the_one_it_names() -> None:
    names = [words.partition(" AS ")[2] for words in steps("FROM")]
    made = re.findall(r"(?:venv --without-pip|mkdir) (\S+)", " ".join(steps("RUN")))
    for words in steps("COPY"):
        if words.startswith("--from="):
            stage, source, _ = words.removeprefix("--from=").split()
            assert stage in names
            assert source in made


def test_it_takes_the_same_locked_libraries_as_the_image_of_debians_packages() -> None:
    script = (ROOT / "deploy" / "image" / "make_image.py").read_text()
    (export,) = re.findall(r'export = \("export", (.*?)\)', script)
    run = " ".join(steps("RUN"))
    for option in re.findall(r'"(.*?)"', export):
        assert option in run
    assert "--require-hashes" in run
    assert "--require-hashes" in script
    version = re.findall(r"UV_VERSION := (\S+)", (ROOT / "Makefile").read_text())
    assert re.findall(r"uv==(\S+)", run) == version


def test_both_have_the_same_user_programs_and_names() -> None:
    made = make_image()
    (user,) = steps("USER")
    assert user == f"{made.USER}:{made.USER}"
    (names,) = re.findall(r"for name in (.*?); ", " ".join(steps("RUN")))
    assert sorted(names.split()) == sorted(PurePosixPath(n).name for n in made.OTHER_NAMES)
    (entry,) = steps("ENTRYPOINT")
    assert PurePosixPath(entry.strip('["]')).name == PurePosixPath(made.COMPAT).name
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == made.COMMANDS
    theirs = {word.partition("=")[0] for words in steps("ENV") for word in words.split()}
    config = made._config("0")["config"]
    ours = {word.partition("=")[0] for word in config["Env"]} - {"SSL_CERT_FILE"}
    assert theirs == ours
