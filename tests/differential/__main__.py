"""`python -m tests.differential record|compare [NAME …]`: see running.py."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import click

from tests.checks.rules import table
from tests.differential.apache_kafka import running_kafka, started_kafka, version
from tests.differential.known_differences import explain
from tests.differential.running import (
    AT_ONCE,
    BROKER_CONFIG,
    PROFILES,
    At,
    Found,
    differences,
    kbroker,
    load_scripts,
    record,
    recorded,
    run,
)
from tests.differential.script import Script
from tests.differential.secured import PROTOCOL_MAP, Place

T = TypeVar("T")


@click.group()
def main() -> None:
    """Run scripts of requests against Apache Kafka (recorded) and kbroker."""


@main.command("record")
@click.argument("names", nargs=-1)
def record_kafka(names: tuple[str, ...]) -> None:
    """Run scripts (all, or those whose name begins with NAMES) against Apache Kafka and store its
    answers."""
    chosen = _chosen(names)
    failed = 0
    for profile in PROFILES:
        scripts = [script for script in chosen if script.profile == profile]
        if scripts:
            with _kafka(profile) as at:
                failed += _record(scripts, at)
    sys.exit(1 if failed else 0)


@contextmanager
def _kafka(profile: str) -> Iterator[At]:
    """A fresh Kafka with the profile of these scripts."""
    with tempfile.TemporaryDirectory() as home:
        if profile != "secured":
            with started_kafka(Path(home), BROKER_CONFIG) as broker:
                yield broker if profile == "restarts" else broker.port
        else:
            place = Place(Path(home))
            config = BROKER_CONFIG | place.settings(load_scripts().values())
            config[PROTOCOL_MAP] += ",CONTROLLER:PLAINTEXT"
            with running_kafka(Path(home), config, place.listeners(), place.plain):
                yield place


def _record(scripts: list[Script], at: At) -> int:
    return sum(
        _each(
            [script for script in scripts if script.alone == alone],
            lambda script: record(script, at, version()),
            lambda steps: f"{len(steps)} steps",
            at_once=1 if alone else AT_ONCE,
        )
        for alone in (False, True)
    )


@main.command()
@click.option("--storage", default="segment", show_default=True, help="The engine of kbroker.")
@click.argument("names", nargs=-1)
def compare(storage: str, names: tuple[str, ...]) -> None:
    """Run scripts against kbroker and compare its answers with Kafka's.

    Ends with 1 if a script fails, or if an answer differs without an entry in known_differences.
    """
    met: dict[str, list[Found]] = {}
    unexplained: list[Found] = []

    def judge(found: list[Found]) -> str:
        ids = [explain(each) for each in found]
        for each, name in zip(found, ids, strict=True):
            (unexplained if name is None else met.setdefault(name, [])).append(each)
        if None in ids:
            bad = (each for each, name in zip(found, ids, strict=True) if name is None)
            return "".join(f"\n  {each.path}: kafka {each.kafka!r}, kbroker {each.kbroker!r}" for each in bad)
        return "equal" + (f" but for {', '.join(sorted(set(map(str, ids)), key=_number))}" if ids else "")

    chosen = _chosen(names)
    failed = 0
    for profile in PROFILES:
        scripts = [script for script in chosen if script.profile == profile]
        if scripts:
            with kbroker(profile, storage) as at:
                failed += _compare(scripts, at, judge)
    unequal = {each.script for each in unexplained}
    explained = {each.script for found in met.values() for each in found} - unequal
    _tell_listed(met, everything=not names)
    print(
        f"\n{len(chosen)} scripts: {len(chosen) - len(unequal) - len(explained) - failed} equal, "
        f"{len(explained)} equal but for listed "
        f"differences, {len(unequal)} not equal, {failed} failed"
    )
    print(f"{len(unexplained)} differences unexplained")
    sys.exit(1 if unexplained or failed else 0)


def _compare(scripts: list[Script], at: At, judge: Callable[[list[Found]], str]) -> int:
    return _each(
        scripts,
        lambda script: differences(script, recorded(script), run(script, at)),
        judge,
        at_once=1 if scripts[0].restarts else AT_ONCE,
    )


def _number(name: str) -> int:
    return int(name.partition("-")[2])


def _tell_listed(met: Mapping[str, Sequence[Found]], *, everything: bool) -> None:
    print("\nListed differences (docs/differences.md):")
    for row in table().differences:
        found = met.get(row.id, ())
        if not found and not everything:
            continue
        print(
            f"  {row.id}: {len(found)} in {len({each.script for each in found})} scripts. Kafka: "
            f"{row.kafka}. kbroker: {row.kbroker}."
        )


def _chosen(names: tuple[str, ...]) -> list[Script]:
    scripts = load_scripts()
    return [script for name, script in sorted(scripts.items()) if not names or name.startswith(names)]


def _each(
    scripts: list[Script],
    work: Callable[[Script], T],
    tell: Callable[[T], str],
    at_once: int = AT_ONCE,
) -> int:
    """Run all, many at once, and print a line for each in order; returns how many raised."""
    failed = 0
    with ThreadPoolExecutor(at_once) as pool:
        for script, future in [(script, pool.submit(work, script)) for script in scripts]:
            try:
                print(f"{script.name}: {tell(future.result())}", flush=True)
            except Exception as error:  # one script's failure must not hide the others'
                failed += 1
                print(f"{script.name}: FAILED, {type(error).__name__}: {error}", flush=True)
    return failed


main()
