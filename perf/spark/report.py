"""The output of the Spark measurements in perf/results: the machine, and the readings as JSON and
as a page."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"


def machine(*packages: str) -> dict[str, Any]:
    """The machine, with its current load average: call it after the readings."""
    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "packages": {name: version(name) for name in packages},
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def page(
    title: str,
    about: Sequence[str],
    facts: dict[str, Any],
    table: Sequence[Sequence[str]],
    after: Sequence[str] = (),
) -> str:
    """A page in Markdown. The first row of `table` is its head."""
    loads = ", ".join(str(load) for load in facts["load_average"])
    packages = ", ".join(f"{name} {number}" for name, number in facts["packages"].items())
    where = (
        f"Measured on {facts['cpus']} CPUs ({facts['cpu']}), {facts['memory_gib']} GiB, Linux "
        f"{facts['kernel']}, Python {facts['python']}, "
        f"{packages}; load average {loads} (1, 5 and 15 minutes) at the end."
    )
    head, *rows = table
    lines = [
        f"# {title}",
        "",
        *about,
        "",
        where,
        "",
        _row(head),
        _row(["---"] * len(head)),
        *(_row(row) for row in rows),
        "",
        *after,
    ]
    return "\n".join(lines).rstrip() + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, lowest and highest."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def write(directory: Path, name: str, data: dict[str, Any], text: str) -> None:
    """Writes NAME.json and NAME.md."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    (directory / f"{name}.md").write_text(text)
