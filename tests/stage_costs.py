"""What each stage of `make test` costs: a pytest plugin that writes it down, and a table of it.

Each stage loads the plugin (`-p tests.stage_costs --costs DIRECTORY/STAGE`). Every process of
pytest, workers of pytest-xdist included, writes one row: a file `STAGE.PROCESS.json`. `python -m
tests.stage_costs run DIRECTORY/STAGE COMMAND...` writes the row of a command that is not pytest,
and ends with its exit code. `python -m tests.stage_costs DIRECTORY` prints the table.

Only starts through subprocess.Popen by a process of pytest count: not what its children start, and
not the processes of multiprocessing. The plugin must not import kbroker, or anything else that
tests measure.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

BEGAN_S = time.monotonic()
SLOWEST = 10
FAILED_SHOWN = 20
REASON_CHARS = 500


@dataclass
class Row:
    """Of one process.

    - children_s: processor time of its children and theirs
    - cases, slowest, failed: only in the row of the process that reports, not in workers' rows
    """

    stage: str
    process: str
    wall_s: float = 0.0
    own_s: float = 0.0
    children_s: float = 0.0
    collection_s: float = 0.0
    cases: int = 0
    starts: Counter[str] = field(default_factory=Counter)
    slowest: list[tuple[float, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    exit_code: int = 0

    def write(self, place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.with_name(f"{self.stage}.{self.process}.json").write_text(json.dumps(vars(self)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="DIRECTORY/STAGE", help="where to write what this stage costs")


def pytest_configure(config: pytest.Config) -> None:
    if (place := config.getoption("--costs")) is not None:
        config.pluginmanager.register(Costs(Path(place).absolute(), config))


class Costs:
    """The row of this process while pytest runs."""

    def __init__(self, place: Path, config: pytest.Config) -> None:
        self._place = place
        worker = getattr(config, "workerinput", {}).get("workerid")
        self._row = Row(place.name, worker or "pytest")
        self._is_worker = worker is not None
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._children: list[int] = []
        self._popen_init = subprocess.Popen.__init__

    def _count_starts(self) -> None:
        """An audit hook would be called for every import and every open file too."""
        init: Any = self._popen_init

        def counted(popen: subprocess.Popen[Any], args: Any, *others: Any, **options: Any) -> None:
            init(popen, args, *others, **options)
            self._row.starts[kind(args)] += 1
            self._children.append(popen.pid)

        subprocess.Popen.__init__ = counted  # type: ignore[assignment, method-assign]

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        began_s = time.monotonic()
        self._count_starts()  # from here on: pytest-xdist started its workers before
        try:
            return (yield)
        finally:
            self._row.collection_s = time.monotonic() - began_s

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_worker:
            return
        self._seconds[report.nodeid] += report.duration
        if report.failed and not any(line.startswith(report.nodeid) for line in self._row.failed):
            crash = getattr(report.longrepr, "reprcrash", None)
            why = "" if crash is None else " ".join(f"{crash.message} ({crash.path}:{crash.lineno})".split())
            self._row.failed.append(f"{report.nodeid}  {why}".rstrip())

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        row = self._row
        row.wall_s, row.exit_code, row.cases = time.monotonic() - BEGAN_S, int(exitstatus), len(self._seconds)
        own, children = (resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        row.own_s = own.ru_utime + own.ru_stime
        if not session.config.pluginmanager.hasplugin("dsession"):  # its children are the workers
            row.children_s = children.ru_utime + children.ru_stime + sum(map(used_s, self._children))
        pairs = ((seconds, test) for test, seconds in self._seconds.items())
        row.slowest = sorted(pairs, reverse=True)[:SLOWEST]
        row.write(self._place)

    def pytest_unconfigure(self) -> None:
        subprocess.Popen.__init__ = self._popen_init  # type: ignore[method-assign]


def kind(args: Any) -> str:
    """Of a process: a broker, another command of kbroker, or something else."""
    words = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
    words = [os.path.basename(os.fsdecode(word)) for word in words]
    before = ["-m", *words]  # kbroker is the program itself, or the module that Python runs
    place = next(
        (at for at, pair in enumerate(zip(before, words, strict=False)) if pair == ("-m", "kbroker")), None
    )
    if place is None:
        return "others"
    return "brokers" if words[place + 1 : place + 2] == ["start"] else "commands"


def used_s(pid: int) -> float:
    """Processor time of a child that still runs, such as Spark's Java, and of its children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    if int(fields[1]) != os.getpid():
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def run(place: Path, command: list[str]) -> int:
    row = Row(place.name, Path(command[2] if command[1:2] == ["-m"] else command[0]).name)
    row.exit_code = subprocess.run(command, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    row.wall_s, row.children_s = time.monotonic() - BEGAN_S, used.ru_utime + used.ru_stime
    row.write(place)
    return row.exit_code if row.exit_code >= 0 else 128 - row.exit_code


COUNTS = ("brokers", "commands", "others")
HEAD = ("stage", "wall s", "pytest cpu", "children cpu", "collection", "cases", *COUNTS)


def table(rows: Iterable[Row]) -> Iterator[str]:
    """One line a stage, and one for each command that is not pytest; what failed stands last."""
    rows = list(rows)
    groups: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        is_pytest = row.process == "pytest" or row.process.startswith("gw")
        groups[row.stage if is_pytest else f"{row.stage}: {row.process}"].append(row)
    lines = [line(name, group) for name, group in groups.items()]
    lines.append(line("sum", [row for group in groups.values() for row in group]))
    lines[-1][1] = ""  # stages run beside one another
    width = max(len(cells[0]) for cells in lines)
    for cells in (HEAD, *lines):
        yield cells[0].ljust(width) + "".join(
            cell.rjust(len(head) + 2) for cell, head in zip(cells[1:], HEAD[1:], strict=True)
        )
    slowest = sorted((pair for row in rows for pair in row.slowest), reverse=True)[:SLOWEST]
    yield from ("", "slowest tests", *(f"{seconds:6.1f} s  {test[:120]}" for seconds, test in slowest))
    for row in rows:
        if row.exit_code and not row.process.startswith("gw"):
            yield f"\nFAILED: {row.stage} ({row.process}, exit code {row.exit_code})"
            yield from (f"  {test[:REASON_CHARS]}" for test in row.failed[:FAILED_SHOWN])


def line(name: str, rows: list[Row]) -> list[str]:
    """Workers collect the same tests at the same time, and the longest row is that of the stage."""
    starts = sum((row.starts for row in rows), Counter[str]())
    seconds = (
        max(row.wall_s for row in rows),
        sum(row.own_s for row in rows),
        sum(row.children_s for row in rows),
        max(row.collection_s for row in rows),
    )
    counts = (sum(row.cases for row in rows), *(starts[kind] for kind in COUNTS))
    return [name, *(f"{number:.1f}" for number in seconds), *map(str, counts)]


def read(directory: Path) -> Iterator[Row]:
    """In the order in which they were written."""
    for path in sorted(directory.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
        values = json.loads(path.read_text())
        yield Row(**{**values, "starts": Counter(values["starts"])})


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(run(Path(sys.argv[2]), sys.argv[3:]))
    print("\n== what the stages cost ==", *table(read(Path(sys.argv[1]))), sep="\n")
