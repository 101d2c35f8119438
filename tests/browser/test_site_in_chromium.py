"""The documentation as a site: built strictly, searched in Chromium, and broken on purpose."""

import functools
import http.server
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Window

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 30
SHADOW = "[...document.querySelectorAll('*')].map(e => e.shadowRoot).filter(Boolean)"
"""The search is a component with a tree of its own."""
FOUND = f"{SHADOW}.flatMap(e => [...e.querySelectorAll('a[href*=\"preempt-pods\"]')])"
TYPED = f"""
for (const input of {SHADOW}.flatMap(e => [...e.querySelectorAll('input')])) {{
  input.value = 'preempt others';
  input.dispatchEvent(new Event('input', {{bubbles: true}}));
}}
0
"""


def made(project: Path) -> subprocess.CompletedProcess[str]:
    """Run `make site` for the project there, by this one's Python."""
    script = project / "docs" / "site" / "make_site.py"
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's tracked files, to build the site of."""
    folder = tmp_path_factory.mktemp("project")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def address(project: Path) -> Iterator[str]:
    done = made(project)
    assert done.returncode == 0, done.stdout + done.stderr
    site = str(project / "build" / "site")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_are_found_and_nothing_is_fetched_from_elsewhere(
    window: Window, address: str, width: int
) -> None:
    window.open(f"{address}/howto/run-gangs.html", width)
    assert "Run jobs of many pods" in window.run("document.title")
    assert window.run("document.querySelectorAll('table').length") >= 1
    assert window.run("document.documentElement.scrollWidth <= window.innerWidth")
    window.run("document.querySelector('.md-search__button, label[for=__search]').click(); 0")
    deadline = time.monotonic() + PATIENCE_S
    while not window.run(f"!!({FOUND}.length)"):
        window.run(TYPED)
        assert time.monotonic() < deadline, window.run(f"{SHADOW}.map(e => e.innerHTML)")
    assert [url for url in window.browser.requests if not url.startswith((address, "data:"))] == []


def test_links_outside_the_documentation_lead_to_texts(address: str, project: Path) -> None:
    site = project / "build" / "site"
    assert (site / "project" / "ARCHITECTURE.html").is_file()
    assert list((site / "project" / "src").rglob("*.py.txt"))
    page = (site / "reference" / "python-api.html").read_text()
    assert "emptiest" not in page
    assert "score_nodes" in page


def test_a_broken_link_and_an_unlisted_page_are_errors(address: str, project: Path) -> None:
    page = project / "docs" / "howto" / "run-gangs.md"
    text = page.read_text()
    page.write_text(f"{text}\n[gone](nowhere.md)\n")
    assert "nowhere.md does not exist" in made(project).stderr
    page.write_text(f"{text}\n[gone](preempt-pods.md#no-such-heading)\n")
    assert made(project).returncode != 0
    page.write_text(text)
    (project / "docs" / "howto" / "unlisted.md").write_text("# Unlisted\n")
    assert "docs/README.md does not list howto/unlisted.md" in made(project).stderr
