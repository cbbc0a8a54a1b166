"""Every script against kbroker, its answers compared with those recorded from Apache Kafka.

Scripts are independent of each other and mostly wait, so all run concurrently on one broker, or on
one with an authorizer and SASL listeners, before the first test checks its result. Scripts that
restart their broker or alter its settings run one after the other on a third. `full` adds the long
scripts, and the other engines, on which the scripts that depend on the log run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from kbroker.testing.broker import open_test_broker
from tests.brokers import DURABLE_ENGINES, require_engine
from tests.checks.rules import table
from tests.crash.harness import LAUNCHER
from tests.differential.known_differences import KNOWN, explain
from tests.differential.running import (
    AT_ONCE,
    BROKER_CONFIG,
    At,
    Found,
    differences,
    kbroker,
    load_scripts,
    recorded,
    run,
)
from tests.differential.script import Script

SCRIPTS = load_scripts()
LONG = {name for name, script in SCRIPTS.items() if script.long}
ON_DISK = [name for name in sorted(SCRIPTS) if name.startswith(("base_confirmed.", "compaction_", "txn_"))]


def compare(script: Script, at: At) -> list[Found]:
    return differences(script, recorded(script), run(script, at))


Compared: TypeAlias = Mapping[str, Future[list[Found]]]


@contextmanager
def comparing(storage: str, names: Iterable[str]) -> Iterator[Compared]:
    slowest_first = sorted((SCRIPTS[name] for name in names), key=lambda script: -script.seconds)
    with ExitStack() as opened:
        profiles = {script.profile for script in slowest_first}
        at = {profile: opened.enter_context(kbroker(profile, storage)) for profile in profiles}
        at_once = opened.enter_context(ThreadPoolExecutor(AT_ONCE))
        in_turn = opened.enter_context(ThreadPoolExecutor(1))
        yield {
            script.name: (in_turn if script.restarts else at_once).submit(compare, script, at[script.profile])
            for script in slowest_first
        }


@pytest.fixture(scope="module")
def compared(request: pytest.FixtureRequest) -> Iterator[Compared]:
    items = (each for each in request.session.items if isinstance(each, pytest.Function))
    chosen = {each.callspec.params.get("name") for each in items if hasattr(each, "callspec")}
    with comparing("memory", (name for name in SCRIPTS if name not in LONG or name in chosen)) as found:
        yield found


@pytest.fixture(scope="module", params=DURABLE_ENGINES)
def compared_on_disk(request: pytest.FixtureRequest) -> Iterator[Compared]:
    with comparing(require_engine(request.param), ON_DISK) as found:
        yield found


def check(found: Sequence[Found]) -> None:
    unexplained = [each for each in found if explain(each) is None]
    assert not unexplained, "\n".join(
        f"{each.path}: kafka {each.kafka!r}, kbroker {each.kbroker!r}" for each in unexplained
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] if name in LONG else []) for name in sorted(SCRIPTS)]
)
def test_answers_as_kafka(name: str, compared: Compared) -> None:
    check(compared[name].result())


@pytest.mark.full
@pytest.mark.parametrize("name", ON_DISK)
def test_answers_as_kafka_on_disk(name: str, compared_on_disk: Compared) -> None:
    check(compared_on_disk[name].result())


@pytest.mark.parametrize("name", [name for name in sorted(SCRIPTS) if name.startswith("base_confirmed.")])
def test_a_broker_that_confirms_early_is_caught(name: str) -> None:
    command = [*LAUNCHER, "confirms-early"]
    with open_test_broker(storage="memory", config=BROKER_CONFIG, command=command) as broker:
        assert compare(SCRIPTS[name], broker.port)


def test_every_listed_difference_is_met(compared: Compared) -> None:
    """Those of long scripts are looked for when these run."""
    found = [each for future in compared.values() for each in future.result()]
    looked_for = [known for known in KNOWN if known.is_certain and any(map(known.concerns, compared))]
    assert [known for known in looked_for if not any(known.explains(each) for each in found)] == []


def test_every_difference_has_its_reason() -> None:
    assert {row.id for row in table().differences} == {known.id for known in KNOWN}


def test_no_recording_is_left_over() -> None:
    recordings = {
        f"{file.parent.name}.{file.stem}" for file in (Path(__file__).parent / "recorded").glob("*/*.json")
    }
    assert recordings == set(SCRIPTS)
