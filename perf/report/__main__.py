"""Renders a stored run of the suite: on the terminal, as an HTML page, and as the picture of the
README.

    python -m perf.report perf/results/suite.json --html page.html --picture picture.svg
    python -m perf.report first.json --compare second.json      whether the runs' ratios agree
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from perf.report.data import Report, parse
from perf.suite.output import open_console

_FILE = click.Path(dir_okay=False, path_type=Path)
_EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
_NO_RUN = (KeyError, TypeError, json.JSONDecodeError)


@click.command()
@click.argument("results", type=_EXISTING)
@click.option("--html", type=_FILE, metavar="FILE", help="write the page, which is self-contained")
@click.option(
    "--picture",
    type=_FILE,
    metavar="FILE",
    help="write the main picture; .svg or .png (needs Chromium or Chrome)",
)
@click.option("--quiet", is_flag=True, help="nothing on the terminal")
@click.option(
    "--compare",
    type=_EXISTING,
    metavar="FILE",
    help="another run: each ratio in both, and whether their spreads meet",
)
@click.option("--json", "as_json", is_flag=True, help="with --compare: JSON instead of a table")
def main(
    results: Path, html: Path | None, picture: Path | None, quiet: bool, compare: Path | None, as_json: bool
) -> None:
    """Show the run of the suite that is stored in RESULTS, its JSON file."""
    if compare is not None:
        if html or picture or quiet:
            raise click.UsageError("--compare prints a table, or JSON: only --json may be combined with it")
        _compare(results, compare, as_json=as_json)
    elif as_json:
        raise click.UsageError("--json needs --compare: RESULTS is JSON already")
    else:
        _show(results, html, picture, quiet=quiet)


def _compare(first: Path, second: Path, *, as_json: bool) -> None:
    from perf.report import comparison

    one, other = _parsed(first), _parsed(second)
    if as_json:
        click.echo(json.dumps(comparison.to_json(one, other), indent=1))
    else:
        comparison.show(one, other, open_console())


def _parsed(path: Path) -> Report:
    try:
        return parse(json.loads(path.read_text()))
    except _NO_RUN as error:
        raise _no_run(path, error) from error


def _no_run(path: Path, error: Exception) -> click.ClickException:
    return click.ClickException(f"{path} is not a run of the suite: {error!r}")


def _show(results: Path, html: Path | None, picture: Path | None, *, quiet: bool) -> None:
    from perf.report import main_picture, page, terminal

    try:
        data = json.loads(results.read_text())
        if not quiet:
            terminal.show(data, open_console())
        if html is not None:
            page.write(data, html)
        if picture is not None:
            main_picture.write(data, picture)
    except _NO_RUN as error:
        raise _no_run(results, error) from error
    # the run lacks rows of the picture, or there is no browser
    except (ValueError, RuntimeError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
