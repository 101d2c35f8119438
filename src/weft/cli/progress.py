"""Progress on stderr, shown only at a terminal."""

import sys
from collections.abc import Callable


def on_terminal() -> bool:
    """Return True if stderr is a terminal."""
    return sys.stderr.isatty()


def status_line() -> Callable[[str], None]:
    """Return a function that shows a text on stderr, replacing the previous text; without a
    terminal it has no effect."""
    if not on_terminal():
        return lambda _text: None

    def tell(text: str) -> None:
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    return tell


def bar(cells: int) -> Callable[[str, int, int], None] | None:
    """Return a function that advances a bar over `cells` runs, called with (policy, seed, runs
    done); None if there is no terminal or only one run."""
    if cells < 2 or not on_terminal():
        return None
    import atexit

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    description = TextColumn("{task.description:<28}")
    columns = description, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task("simulating", total=cells)
    progress.start()
    atexit.register(progress.stop)  # restores the cursor, however the process ends

    def update(policy: str, seed: int, done: int) -> None:
        progress.update(task, completed=done, description=f"{policy}, seed {seed}")
        if done == cells:
            progress.stop()

    return update
