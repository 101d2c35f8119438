"""Help that lists commands by task, each with its whole sentence; and the value that was meant."""

import re
from typing import Any

from typer import BadParameter
from typer.core import TyperGroup

from weft.model.nearest import nearest

_NOT_ONE_OF = re.compile(r"'(?P<value>.*)' is not one of (?P<choices>'.*')\.", re.DOTALL)
_PREFIX = "Value error, "  # of the library that typer checks with


class CommandGroup(TyperGroup):
    """Commands by `rich_help_panel`, in the order in which the panels come first.

    As plain text: the boxes that typer makes of panels cost 20 of 80 columns, and need Rich.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each command's first sentence, wrapped and never cut."""
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

    def invoke(self, ctx: Any) -> Any:
        """As typer does; of a value that is none of an option's, the nearest is named."""
        try:
            return super().invoke(ctx)
        except BadParameter as error:
            match = _NOT_ONE_OF.fullmatch(error.message.removeprefix(_PREFIX))
            if match:
                error.message = match[0]
                choices = re.findall(r"'([^']*)'", match["choices"])
                near = nearest(match["value"], choices)
                error.message += f" Did you mean {near!r}?" if near else ""
            raise


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph, maxsplit=1)[0]
