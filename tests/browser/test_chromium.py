"""A page that hangs or crashes fails its own test, at once and with a reason, and none after it."""

import time
from typing import Any

import chromium
import pytest
from chromium import PageError, Window


def test_a_page_that_crashed_is_said_and_the_next_test_has_a_new_browser(window: Window) -> None:
    with pytest.raises(PageError, match="the page crashed"):
        window.ask("Page.crash")
    window.for_next_test()
    assert window.run("1 + 1") == 2


def test_a_browser_that_was_killed_is_said_and_the_next_test_has_a_new_one(window: Window) -> None:
    window.browser.kill()
    with pytest.raises(PageError, match="the browser has ended"):
        window.run("1 + 1")
    window.for_next_test()
    assert window.run("1 + 1") == 2


def test_a_page_that_hangs_is_said_and_the_next_test_has_a_new_browser(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    window.tab("about:blank")
    with monkeypatch.context() as patched:
        patched.setattr(chromium, "_PATIENCE_S", 1)
        with pytest.raises(PageError, match=r"Runtime\.evaluate: no answer in 1 s"):
            window.run("(() => { for (;;); })()")
    window.for_next_test()
    assert window.run("1 + 1") == 2


def test_pages_a_test_left_open_are_closed_for_the_next(window: Window) -> None:
    window.run("window.first = true")
    window.tab("about:blank")
    assert window.run("window.first") is None
    window.for_next_test()
    assert window.run("window.first") is True
    until = time.monotonic() + 30
    while len(pages(window)) > 2:  # it and the one at the start; a page takes a moment to close
        assert time.monotonic() < until, pages(window)


def pages(window: Window) -> list[dict[str, Any]]:
    """The pages that are open."""
    targets = window.ask("Target.getTargets")["targetInfos"]
    return [target for target in targets if target["type"] == "page"]
