"""`python -m tests.differential record|compare [NAME …]`: see running.py."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import click

from kbroker.testing.broker import open_test_broker
from tests.differential.apache_kafka import running_kafka, version
from tests.differential.known_differences import NOT_YET_EQUAL, explain
from tests.differential.running import AT_ONCE, BROKER_CONFIG, Found, differences, load_scripts, record, recorded, run
from tests.differential.script import Script

T = TypeVar("T")


@click.group()
def main() -> None:
    """Scripts of requests, answered by Apache Kafka (recorded) and by kbroker."""


@main.command("record")
@click.argument("names", nargs=-1)
def record_kafka(names: tuple[str, ...]) -> None:
    """Run scripts (all, or those whose name begins with NAMES) against Apache Kafka and keep its answers."""
    with tempfile.TemporaryDirectory() as home, running_kafka(Path(home), BROKER_CONFIG) as port:
        failed = _each(_chosen(names), lambda script: record(script, port, version()), lambda steps: f"{len(steps)} steps")
    sys.exit(1 if failed else 0)


@main.command()
@click.option("--storage", default="segment", show_default=True, help="The engine of kbroker.")
@click.argument("names", nargs=-1)
def compare(storage: str, names: tuple[str, ...]) -> None:
    """Run scripts against kbroker and compare its answers with Kafka's.

    Ends with 1 if a script differs that neither known_differences.py explains nor not_yet_equal.txt names."""
    listed: Counter[str] = Counter()
    unexplained: list[Found] = []

    def judge(found: list[Found]) -> str:
        bad = [each for each in found if explain(each) is None]
        listed.update(name for each in found if (name := explain(each)) is not None)
        unexplained.extend(bad)
        return "equal" if not bad else "".join(f"\n  {each.path}: kafka {each.kafka!r}, kbroker {each.kbroker!r}" for each in bad)

    chosen = _chosen(names)
    with open_test_broker(storage=storage, config=BROKER_CONFIG) as broker:
        failed = _each(chosen, lambda script: differences(script, recorded(script), run(script, broker.port)), judge)
    unequal = {each.script for each in unexplained}
    print(f"{len(chosen)} scripts, {len(chosen) - len(unequal) - failed} equal, {len(unequal)} not, {failed} failed")
    print(f"{len(unexplained)} differences unexplained, in {len(unequal - NOT_YET_EQUAL)} scripts beside those in not_yet_equal.txt")
    print("listed differences met: " + (", ".join(f"{name} ({count} times)" for name, count in sorted(listed.items())) or "none"))
    sys.exit(1 if unequal - NOT_YET_EQUAL or failed else 0)


def _chosen(names: tuple[str, ...]) -> list[Script]:
    scripts = load_scripts()
    return [script for name, script in sorted(scripts.items()) if not names or name.startswith(names)]


def _each(scripts: list[Script], work: Callable[[Script], T], tell: Callable[[T], str]) -> int:
    """Run all, many at once, and print a line for each in order; how many raised."""
    failed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for script, future in [(script, pool.submit(work, script)) for script in scripts]:
            try:
                print(f"{script.name}: {tell(future.result())}", flush=True)
            except Exception as error:  # one script's failure must not hide the others'
                failed += 1
                print(f"{script.name}: FAILED, {type(error).__name__}: {error}", flush=True)
    return failed


main()
