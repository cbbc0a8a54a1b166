"""Generates docs/cli-reference.md from `--help`: `python -m tests.checks.cli_doc` (or
`make docs`)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from kbroker.cli import cli, exits
from kbroker.cli.security_options import VARIABLES

CLI_DOC = Path(__file__).parents[2] / "docs" / "cli-reference.md"

HEAD = """# Commands and their options

Made from `kbroker COMMAND --help` by `make docs`; do not edit. [The command line](cli.md) introduces
it. Every command also has `--help`.

Exit codes ([what to do](exit-codes.md)): {codes}.
Variables beside those of options ([meaning](cli.md#a-secured-broker)): {variables}.
"""
TABLE_HEAD = ["| option | meaning | default, variable, bounds |", "| --- | --- | --- |"]
_EXTRA = re.compile(r"\s{2}\[(.*?)](?=\s{2}\[|$)")
_CODE = re.compile(r"(`[^`]*`|(?<![\w-])--?[a-z][a-z-]*|\b\w*_[\w.]*\w|\b[a-z-]+(?:\.[a-z-]+)+\b)")


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """The command and all below it, with the context in which each shows its help."""
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, click.Context(found, info_name=name, parent=context))


def render() -> str:
    codes = {value: name for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    lines = [
        HEAD.format(
            codes=", ".join(f"{code} {codes[code].replace('_', ' ').lower()}" for code in sorted(codes)),
            variables=", ".join(f"`{name}`" for name in VARIABLES),
        )
    ]
    for command, context in commands(cli, click.Context(cli, info_name="kbroker")):
        lines += _section(command, context)
    return "\n".join(lines)


def _section(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"## {context.command_path}\n"
    yield f"    {usage}\n"
    for paragraph in (command.help or "").replace("\f", "").split("\n\n"):
        yield _paragraph(paragraph) + "\n"
    rows = [_row(option, context) for option in command.params if isinstance(option, click.Option)]
    if rows:
        yield from (*TABLE_HEAD, *rows, "")


def _paragraph(text: str) -> str:
    """Examples are code; all other text is prose."""
    title, *lines = text.strip("\b\n ").split("\n")
    if title.strip() == "Examples:":
        return "\n".join(f"    {line.strip()}" for line in lines)
    text = _prose(" ".join((title, *(line.strip() for line in lines))))
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _row(option: click.Option, context: click.Context) -> str:
    names, text = option.get_help_record(context) or ("", "")
    names = names.replace("|", r"\|")
    extras = "; ".join(_EXTRA.findall(text))
    return f"| `{names}` | {_prose(_EXTRA.sub('', text))} | {_prose(extras)} |".replace("|  |", "| |")


def _prose(text: str) -> str:
    """As Markdown: options, names and quoted commands are code, and no other sign is markup."""
    parts = _CODE.split(text)
    return "".join(
        f"`{part.strip('`')}`" if at % 2 else re.sub(r"([*_<|\[\]])", r"\\\1", part)
        for at, part in enumerate(parts)
    ).rstrip()


if __name__ == "__main__":
    CLI_DOC.write_text(render())
