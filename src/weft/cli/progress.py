"""Progress on stderr, for people who watch."""

from collections.abc import Callable


def bar(cells: int) -> Callable[[str, int, int], None]:
    """A bar over `cells` runs; call it with (policy, seed, runs done)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    progress = Progress(
        TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), console=Console(stderr=True), transient=True,
    )  # fmt: skip
    task = progress.add_task("simulating", total=cells)
    progress.start()

    def update(policy: str, seed: int, done: int) -> None:
        progress.update(task, completed=done, description=f"{policy}, seed {seed}")
        if done == cells:
            progress.stop()

    return update
