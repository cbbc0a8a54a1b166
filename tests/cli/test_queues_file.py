"""Queues in a TOML file: what `create --from` makes of it, what it refuses, and that `export`
writes a file that creates the same queues."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.cli.exits import OK, REFUSED, USAGE, CommandFailed
from kbroker.cli.queues.file import KEYS, read_wishes, toml_lines
from kbroker.client.queues.settings import (
    DEAD_LETTER_TOPIC,
    SETTINGS,
    Kind,
    Part,
    Setting,
    Wish,
    look,
    wish_of,
)
from kbroker.settings.definition import INT_MAX, LONG_MAX, ConfigType
from kbroker.settings.topic_configs import TOPIC_CONFIGS
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import require_engine
from tests.cli.conftest import Command
from tests.cli.queue_calls import Changes, queue_name


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    return queue_name(request)


def read(text: str) -> list[Wish]:
    file = io.BytesIO(text.encode())
    file.name = "queues.toml"
    return read_wishes(file)


def test_every_key() -> None:
    (wish,) = read(
        """
        [queues.jobs]
        partitions = 2
        prefetch = 3
        delay = "500ms"
        multiplier = 1.5
        max-delay = "1h 30m"
        jitter = 0
        deliveries = 5
        lock-max = 0
        assignment = "simple"
        in-flight-limit = "span"
        scheduling = false
        retention = "time"
        keep-dead-letters = "forever"
        dead-letters = "given-up"
        [queues.jobs.group-configs]
        "share.record.lock.duration.ms" = 45000
        "share.renew.acknowledge.enable" = false
        [queues.jobs.topic-configs]
        "retention.ms" = "-1"
        [queues.jobs.dead-letter-configs]
        "retention.bytes" = 1000000
        """
    )
    assert wish == Wish(
        "jobs",
        2,
        "given-up",
        {
            "prefetch": "3", "delay": "500", "multiplier": "1.5", "max-delay": "5400000", "jitter": "0.0",
            "deliveries": "5",
            "lock-max": "0", "assignment": "simple", "in-flight-limit": "span", "scheduling": "false",
            "retention": "time", "keep-dead-letters": "-1",
        },
        {
            Part.GROUP: {"share.record.lock.duration.ms": "45000", "share.renew.acknowledge.enable": "false"},
            Part.TOPIC: {"retention.ms": "-1"},
            Part.DEAD_LETTERS: {"retention.bytes": "1000000"},
        },
    )  # fmt: skip


def test_what_is_left_out_is_not_said() -> None:
    assert read("[queues.a]\n[queues.'b.c']\ndead-letters = false\n[queues.d]\ndead-letters = true") == [
        Wish("a"),
        Wish("b.c", dead_letters=""),
        Wish("d"),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there are no queues in it: each is a table [queues.NAME]"),
        ("[queues]", "there are no queues in it"),
        ("[queues.jobs", "this is not TOML: "),
        ("\xff", "this is not TOML: "),
        ("[queue.jobs]", "unknown key 'queue': did you mean 'queues'?"),
        ("queues = 5", "queues is not a table: write [queues]"),
        ("[queues]\njobs = 5", "queues.jobs is not a table: write [queues.jobs]"),
        ("[queues.jobs]\nprefech = 1", "unknown key 'prefech' of queue jobs: did you mean 'prefetch'?"),
        ("[queues.jobs]\nmax_delay = '1h'", "unknown key 'max_delay' of queue jobs: did you mean "
                                            "'max-delay'?"),
        ("[queues.jobs]\nzzz = 1", f"unknown key 'zzz' of queue jobs: there are {', '.join(KEYS)}"),
        ("[queues.a.b]\nprefetch = 1", "a name with a dot is written [queues.\"a.b\"]"),
        ("[queues.jobs]\npartitions = 0", "partitions of queue jobs: 0 is not a whole number from 1 to "
                                          "2147483647"),
        ("[queues.jobs]\npartitions = '1'", "partitions of queue jobs: '1' is not a whole number"),
        ("[queues.jobs]\npartitions = true", "partitions of queue jobs: True is not a whole number"),
        ("[queues.jobs]\nprefetch = -1", "prefetch of queue jobs: -1 is not a whole number from 0 to 10000"),
        ("[queues.jobs]\nprefetch = true", "prefetch of queue jobs: True is not a whole number"),
        ("[queues.jobs]\nprefetch = [1]", "prefetch of queue jobs: [1] is not a whole number"),
        ("[queues.jobs]\njitter = nan", "jitter of queue jobs: nan is not a number from 0 to 1"),
        ("[queues.jobs]\ndelay = 5", "delay of queue jobs: 5 is not a duration: write '500ms', '30s', '10m', "
                                     "'1h' or '30d'"),
        ("[queues.jobs]\ndelay = '5'", "delay of queue jobs: '5' has no unit"),
        ("[queues.jobs]\ndelay = '2d'", "delay of queue jobs: '2d' is more than 1d, the maximum"),
        ("[queues.jobs]\nassignment = 1", "assignment of queue jobs: 1 is not one of simple, all"),
        ("[queues.jobs]\ndead-letters = ''", "dead-letters of queue jobs: '' is neither the name of a "
                                             "topic nor true nor false"),
        ("[queues.jobs]\ngroup-configs = 1", "queues.jobs.group-configs is not a table"),
        ("[queues.jobs.group-configs]\nshare.x = 1", "the name of a config has dots and is quoted: "
                                                     "\"share.…\""),
        ("[queues.jobs.group-configs]\n'kbroker.queue.prefetch' = 1", "kbroker.queue.prefetch must be given "
                                                                      "as 'prefetch'"),
        (f"[queues.jobs.group-configs]\n'{DEAD_LETTER_TOPIC}' = 'x'", "must be given as 'dead-letters' "
                                                                      "outside the table"),
        ("[queues.jobs.topic-configs]\n'retention.ms' = [1]", "[1] is not a string, a number, true or false"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_said_in_one_line(text: str, why: str) -> None:
    file = io.BytesIO(text.encode("latin-1") if "\xff" in text else text.encode())
    file.name = "queues.toml"
    with pytest.raises(CommandFailed) as refusal:
        read_wishes(file)
    assert str(refusal.value).startswith("queues.toml: ")
    assert why in str(refusal.value)
    assert (refusal.value.exit_code, str(refusal.value).count("\n")) == (USAGE, 0)


def texts(setting: Setting) -> st.SearchStrategy[str]:
    definition = setting.definition
    if definition.choices:
        return st.sampled_from(definition.choices)
    if setting.kind is Kind.SWITCH:
        return st.sampled_from(["true", "false"])
    least = definition.minimum or 0
    if setting.kind is Kind.FACTOR:
        return st.floats(least, definition.maximum).map(str)
    limit = LONG_MAX if definition.type is ConfigType.LONG else INT_MAX
    return st.integers(int(least), int(definition.maximum or limit)).map(str)


topic_names = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)
config_texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
configs = st.dictionaries(
    st.sampled_from(
        [each for each in TOPIC_CONFIGS if each not in {row.config for row in SETTINGS.values()}]
    ),
    config_texts,
    min_size=1,
)
wishes = st.builds(
    Wish,
    topic_names,
    st.integers(1, (1 << 31) - 1),
    topic_names | st.just(""),
    st.fixed_dictionaries({each.name: texts(each) for each in SETTINGS.values()}),
    st.dictionaries(st.sampled_from(Part), configs),
)


@given(st.lists(wishes, min_size=1, max_size=3, unique_by=lambda wish: wish.name))
def test_what_is_written_is_read_again(written: list[Wish]) -> None:
    assert read("\n".join(toml_lines(written))) == written


def test_export_makes_the_same_queues_on_another_broker(
    command: Command, broker: RunningBroker, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dotted, plain = f"{queue}.x", f"{queue}-plain"
    broker.create_topic(plain)
    for line in (
        f"queues create {queue} --delay 1500ms --jitter 0.25 -p 2 --keep-dead-letters forever",
        f"configs set --group {queue} share.record.lock.duration.ms=45000 share.auto.offset.reset=latest",
        f"configs set --group {queue} kbroker.queue.priorities={queue}=7",
        f"queues pause {queue}",
        f"configs set --topic {queue} retention.ms=1000",
        f"configs set --topic dlq.{queue} retention.bytes=5",
        f"queues create {dotted} --no-dead-letters --prefetch 0",
        f"share-groups reset-offsets {plain} --topic {plain} --to-earliest --execute",
    ):
        assert command(*line.split()).code == OK, line
    names = (queue, dotted, plain)
    exported = command("queues", "export", *names)
    assert (exported.code, exported.err) == (OK, "")
    (tmp_path / "queues.toml").write_text(exported.out)
    with broker.connect() as connection:
        before = [wish_of(look(connection, name)) for name in names]
    with open_test_broker(storage=require_engine("segment")) as other:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", other.bootstrap)
        assert command("queues", "create", "--from", tmp_path / "queues.toml").code == OK
        assert command("queues", "export", *names).out == exported.out
        again = command("queues", "create", "--from", tmp_path / "queues.toml")
        assert again.lines == [f"queue {name} exists; there is nothing to change" for name in names]
        with other.connect() as connection:
            assert [wish_of(look(connection, name)) for name in names] == before
        described = json.loads(command("queues", "describe", queue, "--json").out)
        assert described["paused"]
        assert described["settings_unlike_defaults"]["kbroker.queue.priorities"] == f"{queue}=7"
        all_of_them = command("queues", "export").out
        assert sorted(wish.name for wish in read(all_of_them)) == sorted(names)
    assert before[0].configs == {
        Part.GROUP: {
            "kbroker.queue.paused": "true",
            "kbroker.queue.priorities": f"{queue}=7",
            "share.auto.offset.reset": "latest",
            "share.record.lock.duration.ms": "45000",
        },
        Part.TOPIC: {"retention.ms": "1000"},
        Part.DEAD_LETTERS: {"retention.bytes": "5"},
    }
    assert before[2].settings["assignment"] == "simple"


def test_one_queue_that_is_refused_keeps_no_other_from_being_made(
    command: Command, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, wrong, differing, last = (f"{queue}-{word}" for word in ("first", "wrong", "differing", "last"))
    assert command("queues", "create", differing).code == OK
    file = tmp_path / "queues.toml"
    file.write_text(
        f"[queues.{first}]\n[queues.{wrong}]\ndeliveries = 99\n[queues.{differing}]\nprefetch = "
        f"9\n[queues.{last}]\npartitions = 2"
    )
    ran = command("queues", "create", "--from", file)
    assert ran.code == REFUSED
    assert ran.err.splitlines()[0] == f"kbroker: queue {differing}: prefetch is 1, requested is 9"
    problems = ran.err.splitlines()[1:]
    assert problems[0].startswith(
        f"kbroker: queue {wrong}: share.delivery.count.limit must be less than or equal to"
    )
    assert problems[1:] == [f"kbroker: queue {differing} was not changed: --update alters it"]
    assert {first, last} <= {row["name"] for row in command("queues", "list", "--json").json}
    assert wrong not in command("topics", "list").lines
    changes = Changes(monkeypatch)
    file.write_text(file.read_text().replace("deliveries = 99", "deliveries = 9"))
    assert command("queues", "create", "--from", file, "--update").code == OK
    assert changes.made == [
        "create_topics",
        "incremental_alter_configs",
        "create_topics",
        "alter_share_group_offsets",
        "incremental_alter_configs",
    ]


def test_a_file_on_standard_input(broker: RunningBroker, queue: str) -> None:
    create = [sys.executable, "-m", "kbroker", "queues", "create", "--from", "-", "-b", broker.bootstrap]
    for text, code, said in (
        (f"[queues.{queue}]\nprefetc = 1", USAGE, "kbroker: <stdin>: unknown key 'prefetc'"),
        (f"[queues.{queue}]\nprefetch = 2", OK, f"queue {queue} is ready"),
    ):
        ran = subprocess.run(create, input=text, capture_output=True, text=True, check=False, timeout=60)
        assert ran.returncode == code
        assert said in ran.stdout + ran.stderr
    with broker.connect() as connection:
        assert wish_of(look(connection, queue)).settings["prefetch"] == "2"
