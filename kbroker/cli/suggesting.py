"""Suggestions for unknown commands and options: command groups suggest a command.

click compares only letters, and only with commands that are loaded. This group also matches a part
of a name (`share`, `dead`), the names of other tools' commands (`rm`), and a subcommand without its
group (`describe`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click

OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "add": ("create",),
    "browse": ("peek",),
    "change": ("alter", "set"),
    "declare": ("create",),
    "delete-messages": ("delete-records",),
    "desc": ("describe",),
    "describe-producers": ("producers",),
    "dlq": ("dead-letters",),
    "drop": ("delete",),
    "enqueue": ("send", "produce"),
    "fence": ("abort",),
    "find": ("list",),
    "help": ("--help",),
    "info": ("describe",),
    "ls": ("list",),
    "manual": ("docs",),
    "new": ("create",),
    "publish": ("send", "produce"),
    "receive": ("consume", "share-consume"),
    "remove": ("delete",),
    "retry": ("redrive",),
    "rm": ("delete",),
    "run": ("start",),
    "send": ("produce",),
    "serve": ("start",),
    "server": ("start",),
    "show": ("describe",),
    "subscribe": ("consume", "share-consume"),
    "terminate": ("abort",),
    "unpause": ("resume",),
    "unset": ("delete",),
    "update": ("alter", "set"),
    "version": ("--version",),
}
"""Other tools' names for kbroker's commands."""
OTHER_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "--address": ("--listen", "--bootstrap-server"),
    "--attempts": ("--deliveries",),
    "--backoff": ("--delay",),
    "--bind": ("--listen",),
    "--broker": ("--bootstrap-server",),
    "--concurrency": ("--prefetch",),
    "--count": ("--max-messages",),
    "--countdown": ("--delay",),
    "--dir": ("--data-dir",),
    "--dlq": ("--dead-letters",),
    "--engine": ("--storage",),
    "--eta": ("--at",),
    "--host": ("--listen", "--bootstrap-server"),
    "--limit": ("--max-messages",),
    "--max-attempts": ("--deliveries",),
    "--max-deliver": ("--deliveries",),
    "--max-retries": ("--deliveries",),
    "--message-ttl": ("--ttl",),
    "--path": ("--data-dir",),
    "--port": ("--listen", "--bootstrap-server"),
    "--retries": ("--deliveries",),
    "--server": ("--bootstrap-server",),
    "--timeout": ("--lock-max",),
    "--url": ("--bootstrap-server",),
    "--visibility-timeout": ("--lock-max",),
}
"""Other tools' names for kbroker's options; the first that the command has is suggested."""
_SHORTEST_PART: Final = 3


def no_such_option(error: click.NoSuchOption) -> str:
    """The line for it: other tools' names first, because click compares only letters."""
    if error.ctx is not None:
        known = {name for parameter in error.ctx.command.params for name in parameter.opts}
        for meant in OTHER_OPTIONS.get(error.option_name, ()):
            if meant in known:
                return f"{error.message} Did you mean {meant!r}?"
    return error.format_message()


def similar(wrong: str, names: Sequence[str]) -> list[str]:
    """The best matches for `wrong` among `names`: by other tools' names, else as a prefix, else by
    similar letters, else by a common part."""
    word = wrong.lower()
    if others := [name for name in names if name in OTHER_NAMES.get(word, ())]:
        return others
    if len(word) >= _SHORTEST_PART and (longer := [name for name in names if name.startswith(word)]):
        return longer
    import difflib

    if close := difflib.get_close_matches(word, names):
        return close
    parts = [part for part in word.split("-") if len(part) >= _SHORTEST_PART]
    return [name for name in names if any(part in name for part in parts)]


class SuggestingGroup(click.Group):
    """Reads list_commands(), not the dictionary of commands, so lazily loaded commands are
    suggested too."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(context, args)
        except click.NoSuchOption as error:
            raise click.UsageError(
                f"{error.format_message()} Options of a command come after the command.", context
            ) from error

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name.startswith("-") or context.resilient_parsing or self.get_command(context, name) is not None:
            return super().resolve_command(context, args)
        raise click.UsageError(f"No such command {name!r}.{self._hint(context, name)}", context)

    def _hint(self, context: click.Context, name: str) -> str:
        options = [option for parameter in self.get_params(context) for option in parameter.opts]
        found = similar(name, [*self.list_commands(context), *options]) or list(
            self._in_groups(context, name)
        )
        if not found:
            return ""
        shown = [f"'{context.command_path} {each}'" for each in found]
        return (
            f" Did you mean {shown[0]}?" if len(shown) == 1 else f" Did you mean one of {', '.join(shown)}?"
        )

    def _in_groups(self, context: click.Context, name: str) -> Iterator[str]:
        """`topics describe` for `describe`."""
        for group in self.list_commands(context):
            command = self.get_command(context, group)
            if isinstance(command, click.Group):
                meant = (name.lower(), *OTHER_NAMES.get(name.lower(), ()))
                yield from (f"{group} {each}" for each in command.list_commands(context) if each in meant)
