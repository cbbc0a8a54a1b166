"""`kbroker docs`: the pages of docs/, which are part of the package, so that a page that an error
message names can be read wherever kbroker is installed.

In a checkout kbroker/docs is a symbolic link to docs/; a wheel contains the pages there.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Container, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

import kbroker
from kbroker.cli.exits import CommandFailed
from kbroker.cli.output import print_json, print_table
from kbroker.cli.params import json_option
from kbroker.cli.suggesting import similar

if TYPE_CHECKING:
    from rich.console import Console

FOLDER = Path(kbroker.__file__).parent / "docs"
_INDEX = "README"
_FIRST = "index"
_WIDEST = 110
_LINK = re.compile(r"\[([^]]*)]\((?!https?://)([^)#\s]*)(?:#[^)\s]*)?\)")
_PAGER_STYLE = "FRX"
"""Options of less, unless the user has set some: pass colours through, and quit at once if the text
fits on one screen."""


@click.command()
@click.argument("page", required=False)
@json_option("An array of objects: page, title. Without PAGE.")
def docs(page: str | None, as_json: bool) -> None:
    """Read the documents: list the pages, or print one.

    PAGE is a name or a file (docs/cli.md). On a terminal it is shown in a pager, that of PAGER;
    otherwise it is printed as Markdown. `kbroker docs settings | grep lock` finds a setting.

    \b
    Examples:
      kbroker docs
      kbroker docs durability
    """
    pages = _pages()
    if page is not None:
        if as_json:
            raise click.UsageError("--json is for the list of pages, without PAGE")
        _show(_chosen(page, pages).read_text("utf-8"), pages)
        return
    rows = [(name, _title(path)) for name, path in pages.items()]
    if as_json:
        print_json([{"page": name, "title": title} for name, title in rows])
    else:
        print_table(("PAGE", "TITLE"), rows)


def _pages() -> dict[str, Path]:
    """Page name -> file: the index first, pages of subfolders (named `folder/page`) last. Raises
    CommandFailed if there are none."""
    root = FOLDER.resolve()  # rglob() does not follow a link
    names = {_name(path.relative_to(root)): path for path in root.rglob("*.md")}
    if not names:
        raise CommandFailed(f"this installation of kbroker has no pages in {FOLDER}; install it again")
    return {
        name: names[name] for name in sorted(names, key=lambda name: (name != _FIRST, name.count("/"), name))
    }


def _name(path: Path) -> str:
    """The name of a page; a folder's README.md has the name of the folder."""
    if path.stem != _INDEX:
        return str(path.with_suffix(""))
    return path.parent.name or _FIRST


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().removeprefix("#").strip()


def _chosen(page: str, pages: dict[str, Path]) -> Path:
    """The name of the page. `page` may be a link such as docs/cli.md#kbroker-start. Raises
    UsageError."""
    name = (
        page.partition("#")[0].removeprefix("./").removeprefix("docs/").removesuffix(".md").strip("/").lower()
    )
    folder = _FIRST if name == _INDEX.lower() else name.removesuffix(f"/{_INDEX.lower()}")
    # spark/README.md in the checkout is not docs/spark.md
    if folder in pages and (folder == name or pages[folder].stem == _INDEX):
        return pages[folder]
    ends = [each for each in pages if each.rpartition("/")[2] == name]
    if len(ends) == 1:
        return pages[ends[0]]
    meant = [folder] if folder in pages else similar(name, list(pages))
    raise click.UsageError(f"there is no page {page!r}; {_hint(meant)}")


def _hint(meant: Sequence[str]) -> str:
    return f"did you mean {' or '.join(meant[:3])}?" if meant else "`kbroker docs` lists the pages"


def _show(text: str, pages: Container[str]) -> None:
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.capture() as captured:
        console.print(
            Markdown(_LINK.sub(partial(_without_link, pages), text), hyperlinks=False), width=_width(console)
        )
    os.environ.setdefault("LESS", _PAGER_STYLE)
    click.echo_via_pager(captured.get(), color=console.is_terminal and not console.no_color)


def _without_link(pages: Container[str], found: re.Match[str]) -> str:
    """Replaces a link to a page by its text and the page's name, and a link to a file outside the
    package by its text."""
    words, name = found[1], found[2].removesuffix(".md")
    return f"{words} (page {name})" if name in pages and name not in words else words


def _width(console: Console) -> int:
    return min(console.width, _WIDEST)
