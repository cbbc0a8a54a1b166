"""A screenshot of the top of a `kbroker-pipeline` report.

    kbroker-pipeline demo --home HOME
    python -m perf.pictures.spark_report HOME/tables/reports/queue-health.html PICTURE.png

Needs Chromium or Chrome.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click

_WIDTH_PX, _HEIGHT_PX = 1200, 1170
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_TIME_FOR_PLOTS_MS = 8000


@click.command()
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("picture", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--height", type=int, default=_HEIGHT_PX, show_default=True, help="Pixels of the page to show.")
def main(report: Path, picture: Path, height: int) -> None:
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise click.ClickException("Chromium or Chrome is needed to draw the page")
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--window-size={_WIDTH_PX},{height}",
        f"--virtual-time-budget={_TIME_FOR_PLOTS_MS}",
        f"--screenshot={picture.resolve()}",
    ]
    subprocess.run([browser, *options, report.resolve().as_uri()], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
