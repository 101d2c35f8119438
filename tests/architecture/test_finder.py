"""The page that leads from a question to the code is true, short, and misses no package."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "weft"
PAGE = (ROOT / "docs" / "contributing" / "where-to-look.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "`" in line]
PLACES = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?(?::\w+)?)`", "\n".join(ROWS))
GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text()


def test_the_page_is_short() -> None:
    assert 30 <= len(ROWS) <= 40


@pytest.mark.parametrize("place", PLACES)
def test_every_place_exists(place: str) -> None:
    path, _, name = place.partition(":")
    assert (SOURCE / path).exists()
    if name:
        defined = rf"^ *(async )?(def|class) {name}\b|^{name}(:.*)? = "
        assert re.search(defined, (SOURCE / path).read_text(), re.MULTILINE), f"no {name} in {path}"


def test_every_package_is_named_by_a_row() -> None:
    """By itself or by one of its files, so that no module is more than a folder away."""
    named = {(SOURCE / place.partition(":")[0]) for place in PLACES}
    folders = {path if path.is_dir() else path.parent for path in named}
    packages = {path.parent for path in SOURCE.rglob("*.py") if not path.name.startswith("__")}
    assert sorted(str(path) for path in packages - folders) == []


def test_the_glossary_leads_to_files_that_exist() -> None:
    places = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", GLOSSARY)
    assert len(places) > 20
    assert [place for place in places if not (SOURCE / place).exists()] == []
