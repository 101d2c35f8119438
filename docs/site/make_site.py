"""Makes the documentation a searchable site: `make site`, build/site/index.html.

The pages of docs/ and those outside it that they link to, in the order of docs/README.md. Other
files that pages link to are in the site as text. A broken link or anchor, or a page that the index
does not list, is an error. Nothing is fetched by the site from elsewhere.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
STAGED, SITE = ROOT / "build" / "site-pages", ROOT / "build" / "site"
INDEX = "README.md"
_LINK = re.compile(r"(?<=\]\()([^()\s#]+)(#[^()\s]*)?(?=\))")
_FENCE = re.compile(r"^(\s*```\w+) .*$", re.M)
_HEADING = re.compile(r"^(?:\*\*(.+?)\*\*.*|## (.+))$")
_ITEM_LINK = re.compile(r"\[([^\]]+)\]\(([^()\s#]+\.md)\)")

SETTINGS: dict[str, Any] = {
    "site_name": "Weft",
    "docs_dir": STAGED.name,
    "site_dir": SITE.name,
    "use_directory_urls": False,
    "theme": {
        "name": "material",
        "font": False,
        "features": ["navigation.indexes", "navigation.top", "search.suggest", "toc.follow"],
        "palette": [
            {"media": "(prefers-color-scheme: light)", "scheme": "default", "primary": "teal"},
            {"media": "(prefers-color-scheme: dark)", "scheme": "slate", "primary": "teal"},
        ],
    },
    "plugins": ["search"],
    "markdown_extensions": [
        "tables",
        "pymdownx.superfences",
        {"pymdownx.highlight": {"use_pygments": True}},
    ],
    "validation": {
        "omitted_files": "warn",
        "absolute_links": "warn",
        "unrecognized_links": "warn",
        "anchors": "warn",
    },
}
SLUGS = """
- toc:
    permalink: true
    slugify: !!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}
"""


class Site:
    """The pages and files that are in the site, by their paths in the project."""

    def __init__(self) -> None:
        self.places: dict[Path, Path] = {DOCS / INDEX: Path("index.md")}
        self._todo = [DOCS / INDEX]

    def add(self, path: Path) -> Path:
        """The place of a page or file in the site."""
        if path not in self.places:
            inside = path.is_relative_to(DOCS)
            place = path.relative_to(DOCS) if inside else Path("project", path.relative_to(ROOT))
            if path.suffix == ".md":
                self._todo.append(path)
            elif not inside:
                place = place.with_name(f"{place.name}.txt")
            self.places[path] = place
        return self.places[path]

    def stage(self) -> None:
        """Write all pages, and what they link to, into the folder that is built."""
        for path in sorted(DOCS.rglob("*")):
            if path.is_file() and path.suffix in {".md", ".svg", ".png"}:
                self.add(path)
        while self._todo:
            page = self._todo.pop()
            write(STAGED / self.places[page], self._rewritten(page))
        for path, place in self.places.items():
            if path.suffix != ".md":
                write(STAGED / place, path.read_bytes())

    def _rewritten(self, page: Path) -> bytes:
        here = self.places[page].parent

        def link(match: re.Match[str]) -> str:
            target, anchor = match[1], match[2] or ""
            if re.match(r"[a-z]+:", target):
                return match[0]
            path = (page.parent / target).resolve()
            if path.is_dir() and (path / INDEX).is_file():
                path = path / INDEX
            if path.is_dir():  # a folder: there is no page of it
                return match[0]
            if not path.is_file():
                sys.exit(f"{page.relative_to(ROOT)}: {target} does not exist")
            place = self.add(path)
            return os.path.relpath(place, here) + (anchor if path.suffix == ".md" else "")

        return _FENCE.sub(r"\1", _LINK.sub(link, page.read_text())).encode()


def write(path: Path, content: bytes) -> None:
    """Write a file into a folder that may not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def navigation(site: Site) -> list[dict[str, Any]]:
    """The index' sections and pages, in its order, and then the project's own pages."""
    found: list[dict[str, Any]] = [{"Home": "index.md"}]
    pages: list[Any] = found
    for line in (DOCS / INDEX).read_text().splitlines():
        if heading := _HEADING.match(line):
            pages = []
            found.append({heading[1] or heading[2]: pages})
        for title, target in _ITEM_LINK.findall(line):
            path = (DOCS / target).resolve()
            pages.append({title: str(site.add(path))})
    listed = {place for section in found for place in _places(section)}
    further = [
        str(place)
        for path, place in sorted(site.places.items())
        if path.suffix == ".md" and str(place) not in listed and path != DOCS / INDEX
    ]
    if left := [place for place in further if not place.startswith("project")]:
        sys.exit(f"docs/README.md does not list {', '.join(left)}")
    return [*found, {"Project": further}]


def _places(section: Any) -> list[str]:
    if isinstance(section, str):
        return [section]
    each = section.values() if isinstance(section, dict) else section
    return [place for one in each for place in _places(one)]


def main() -> int:
    """Stage and build; the exit code of the builder."""
    shutil.rmtree(STAGED, ignore_errors=True)
    site = Site()
    site.stage()
    settings = SETTINGS | {"nav": navigation(site)}
    text = yaml.safe_dump(settings, sort_keys=False)
    extensions = "markdown_extensions:\n"
    text = text.replace(extensions, extensions + SLUGS.lstrip("\n"))
    settings_file = STAGED.with_name("mkdocs.yml")
    write(settings_file, text.encode())
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file"]
    return subprocess.run([*command, settings_file], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
