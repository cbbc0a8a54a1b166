"""A stored run of the suite, rendered again: on the terminal, as an HTML page, and as the picture of the README.

    python -m perf.report perf/results/suite.json --html page.html --picture picture.svg
"""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("results", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--html", type=_FILE, metavar="FILE", help="write the page, which holds everything it needs")
@click.option("--picture", type=_FILE, metavar="FILE", help="write the main picture; .svg or .png (needs Chromium or Chrome)")
@click.option("--quiet", is_flag=True, help="nothing on the terminal")
def main(results: Path, html: Path | None, picture: Path | None, quiet: bool) -> None:
    """Show the run of the suite that RESULTS (its JSON) holds."""
    from perf.report import main_picture, page, terminal

    try:
        data = json.loads(results.read_text())
        if not quiet:
            terminal.show(data, Console())
        if html is not None:
            page.write(data, html)
        if picture is not None:
            main_picture.write(data, picture)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise click.ClickException(f"{results} is no run of the suite: {error!r}") from error
    except (ValueError, RuntimeError) as error:  # the picture cannot be made of this run, or there is no browser to make it with
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
