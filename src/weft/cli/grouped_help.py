"""Help that lists commands by task, and errors that explain wrong values."""

import re
from typing import Any

from typer import BadParameter
from typer.core import TyperGroup

from weft.model.nearest import nearest

_NOT_ONE_OF = re.compile(r"'(?P<value>.*)' is not one of (?P<choices>'.*')\.", re.DOTALL)
_MOST_SHOWN = 100
MOVED = {
    "explain metrics": "weft metrics --check",
    "explain setting": "weft config explain",
    "explain slowdown": "weft interference predict --why",
    "interference explain": "weft interference predict --why",
    "experiment overprovision": "weft experiment run examples/experiments/lending.yaml",
    "experiment interference": "weft experiment run examples/experiments/interference.yaml",
}
"""Commands of Weft 0.1, with their replacements."""

_PREFIX = "Value error, "  # added by the library that typer validates with


class CommandGroup(TyperGroup):
    """Lists commands by `rich_help_panel`, in the order in which the panels first occur.

    It prints plain text: typer's boxes cost 20 of 80 columns, and need Rich."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command's first sentence, wrapped instead of truncated."""
        tasks: dict[str, list[tuple[str, str]]] = {}
        longest = max(map(len, self.commands))
        for name in self.list_commands(ctx):
            command = self.commands[name]
            if not command.hidden:
                task = str(getattr(command, "rich_help_panel", None) or "Commands")
                sentence = _first_sentence(command.help or "")
                tasks.setdefault(task, []).append((f"{name:<{longest}}", sentence))
        for task, commands in tasks.items():
            with formatter.section(task):
                formatter.write_dl(commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve the command as typer does; for a command of Weft 0.1, name its replacement."""
        now = MOVED.get(f"{ctx.info_name} {args[0]}")
        if now is not None:
            ctx.fail(f"No such command {args[0]!r}: write `{now}` instead.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Invoke as typer does, but explain a wrong value in words."""
        try:
            return super().invoke(ctx)
        except BadParameter as error:
            error.message = _number_in_words(error) or error.message
            match = _NOT_ONE_OF.fullmatch(error.message.removeprefix(_PREFIX))
            if match:
                error.message = match[0]
                choices = re.findall(r"'([^']*)'", match["choices"])
                near = nearest(match["value"], choices)
                error.message += f" Did you mean {near!r}?" if near else ""
            raise


def _number_in_words(error: BadParameter) -> str:
    """Return an explanation of a wrong number and its bound; "" for any other error."""
    errors = getattr(error.__cause__, "errors", list)  # of the library that typer validates with
    for wrong in errors():
        value, bounds = str(wrong.get("input"))[:_MOST_SHOWN], wrong.get("ctx", {})
        if "le" in bounds:
            return f"{value} is too large; the maximum is {_plain(bounds['le'])}"
        if "ge" in bounds:
            return f"{value} is too small; the minimum is {_plain(bounds['ge'])}"
        if wrong.get("type") in ("int_parsing", "int_from_float", "int_parsing_size"):
            return f"{value!r} is not a whole number"
        if wrong.get("type") == "float_parsing":
            return f"{value!r} is not a number"
    return ""


def _plain(bound: float) -> str:
    return f"{bound:,}".removesuffix(".0")


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph, maxsplit=1)[0]
