"""The command line as a whole: help, usage errors and how errors become one line and an exit code.
No broker is needed."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kbroker.cli import COMMANDS, cli, run
from kbroker.cli.exits import INTERRUPTED, OK, REFUSED, UNREACHABLE, USAGE, CommandFailed, end_of
from kbroker.cli.params import AddressType, DateTimeType, DurationType, NameValue
from kbroker.client.broker_process import free_port
from kbroker.client.rpc import BrokerUnreachable
from kbroker.client.spans import parse_span, span_text
from kbroker.errors import ErrorCode, KafkaError
from tests.checks.cli_doc import CLI_DOC, render

NEEDS_A_BROKER = [
    ["queues", "create", "q"],
    ["queues", "list"],
    ["queues", "describe", "q"],
    ["queues", "peek", "q"],
    ["queues", "send", "q", "job"],
    ["queues", "export"],
    ["queues", "pause", "q"],
    ["queues", "resume", "q"],
    ["queues", "purge", "q"],
    ["queues", "delete", "q"],
    ["topics", "list"],
    ["topics", "create", "t"],
    ["topics", "describe", "t"],
    ["topics", "delete", "t"],
    ["topics", "alter", "t", "-p", "2"],
    ["topics", "delete-records", "t", "--to-end"],
    ["dead-letters", "count", "t"],
    ["dead-letters", "purge", "t"],
    ["consume", "t"],
    ["share-consume", "t", "-g", "g"],
    ["share-groups", "list"],
    ["share-groups", "describe", "--all-groups"],
    ["share-groups", "delete", "g"],
    ["share-groups", "reset-offsets", "g", "--topic", "t", "--to-earliest", "--dry-run"],
    ["share-groups", "delete-offsets", "g", "--topic", "t"],
    ["groups", "list"],
    ["groups", "describe", "g"],
    ["groups", "delete", "--all-groups"],
    ["groups", "reset-offsets", "g", "--topic", "t", "--shift-by", "-5"],
    ["groups", "delete-offsets", "g", "--topic", "t:0"],
    ["transactions", "list"],
    ["transactions", "describe", "id"],
    ["transactions", "producers", "t"],
    ["transactions", "find-hanging"],
    ["transactions", "abort", "id"],
    ["consume", "t", "--group", "g"],
    ["configs", "describe", "--topic", "t"],
    ["configs", "set", "--group", "g", "share.auto.offset.reset=earliest"],
    ["configs", "delete", "--broker", "0", "x"],
]

RESET = ["share-groups", "reset-offsets", "g"]
CONSUMER_RESET = ["groups", "reset-offsets", "g"]

WRONG_USAGE = [
    (["no-such-command"], "No such command"),
    (["queues", "create"], "either NAME or --from is needed"),
    (["queues", "create", "q", "--from", "-"], "either NAME or --from is needed"),
    (["queues", "create", "", "--update"], "must not be empty"),
    (["queues", "create", "q", "--from", "/no/such/file"], "No such file"),
    (
        ["queues", "create", "--from", "-", "--prefetch", "2"],
        "--from excludes the options for settings of a queue",
    ),
    (["queues", "create", "q", "--partitions", "0"], "0 is not in the range"),
    (["queues", "create", "q", "--prefetch", "many"], "'many' is not a whole number from 0 to 10000"),
    (["queues", "create", "q", "--prefetch", "10001"], "'10001' is not a whole number from 0 to 10000"),
    (["queues", "create", "q", "--deliveries", "1"], "'1' is not a whole number of at least 2"),
    (["queues", "create", "q", "--multiplier", "0.5"], "'0.5' is not a number from 1 to 100"),
    (["queues", "create", "q", "--delay", "5"], "'5' has no unit: write 500ms, 30s, 10m, 1h or 30d"),
    (
        ["queues", "create", "q", "--delay", "soon"],
        "'soon' is not a duration: write 500ms, 30s, 10m, 1h or 30d",
    ),
    (["queues", "create", "q", "--max-delay", "8d"], "'8d' is more than 7d, the maximum"),
    (["queues", "create", "q", "--delay", "forever"], "'forever' is not a duration"),
    (["queues", "create", "q", "--assignment", "some"], "'some' is not one of simple, all"),
    (["queues", "create", "q", "--dead-letters", "d", "--no-dead-letters"], "exclude each other"),
    (["queues", "create", "q", "--dead-letters", ""], "must not be empty"),
    (["queues", "describe", " "], "must not be empty"),
    (["queues", "peek", "q", "-n", "0"], "0 is not in the range"),
    (["queues", "send", "q", "--header", "x"], "'x' is not NAME=VALUE"),
    (["topics", "create"], "Missing argument 'TOPIC'"),
    (["topics", "create", "t", "--partitions", "0"], "0 is not in the range"),
    (["topics", "create", "t", "--config", "nonsense"], "'nonsense' is not NAME=VALUE"),
    (["topics", "list", "-b", "localhost"], "'localhost' is not HOST:PORT"),
    (["topics", "list", "-b", "localhost:0"], "port 0 is not between 1 and 65535"),
    (["consume", "t", "--from", "yesterday"], "'yesterday' is neither earliest nor latest nor an offset"),
    (["share-consume", "t"], "Missing option '--group'"),
    (["share-consume", "t", "-g", "g", "--from", "5"], "'5' is not one of"),
    (["produce", "t", "--compression", "rar"], "'rar' is not one of"),
    (["produce", "t", "/no/such/file"], "No such file"),
    (["configs", "describe"], "exactly one of --topic, --group and --broker"),
    (["configs", "describe", "--topic", "t", "--group", "g"], "exactly one of --topic, --group and --broker"),
    (["configs", "set", "--topic", "t"], "Missing argument 'CONFIG...'"),
    (["start", "--listen", "nowhere"], "'nowhere' is not HOST:PORT"),
    (["start", "--durability", "hope"], "'hope' is not one of"),
    (["start", "--config", "=5"], "is not NAME=VALUE"),
    (["start", "--listen", "0.0.0.0:9092"], "name the one for clients with --advertise"),
    (["start", "--config-file", "/no/such/file"], "does not exist"),
    (["demo", "--orders", "0"], "0 is not in the range"),
    (["quotas", "set", "--user", "u", "--request-percentage", "nan"], "'nan' is not a finite number"),
    (["worker", "run", "m:a", "--drain", "inf"], "'inf' is not a finite number"),
    (["topics", "create", "t", "--partitions", str(1 << 31)], "is not in the range"),
    (["produce", "t", "--partition", str(1 << 31)], "is not in the range"),
    (["produce", "t", "--timeout-ms", str(1 << 31)], "is not in the range"),
    (["produce", "t", "--key-separator", ""], "must not be empty"),
    (["consume", "t", "--partition", str(1 << 31)], "is not in the range"),
    (["share-consume", "t", "-g", " "], "must not be empty"),
    (["share-consume", "t", "-g", "g", "--release", "--reject"], "exclude each other"),
    (
        ["configs", "set", "--topic", "t", "retention.ms=1", "retention.bytes=1", "retention.ms=2"],
        "retention.ms is given 2 times",
    ),
    (
        ["topics", "create", "t", "--config", "retention.ms=1", "--config", "retention.ms = 1"],
        "retention.ms is given 2 times",
    ),
    (
        ["start", "--config", "num.partitions=1", "--config", "num.partitions=2"],
        "num.partitions is given 2 times",
    ),
    (["consume", "t", "--from", str(1 << 63)], "is neither earliest nor latest nor an offset"),
    (["start", "--data-dir", ""], "must not be empty"),
    (["start", "--state-storage", ""], "must not be empty"),
    (["demo", "--storage", "floppy"], "unknown storage engine 'floppy'"),
    (["share-groups", "list", "--state", "Empty,Full"], "'Full' is not one of Empty, Stable, Dead"),
    (["transactions", "list", "--state", "Open"], "'Open' is not one of Empty, Ongoing"),
    (["transactions", "list", "--longer-than", "5"], "'5' has no unit"),
    (["transactions", "list", "--longer-than", "106751991168d"], "'106751991168d' is too long"),
    (["transactions", "list", "--pattern", ""], "must not be empty"),
    (["transactions", "describe"], "Missing argument 'ID...'"),
    (["transactions", "describe", " "], "must not be empty"),
    (["transactions", "abort"], "either ID, or --topic, --partition and --start-offset are needed"),
    (["transactions", "abort", "id", "--topic", "t"], "are needed, not both"),
    (["transactions", "abort", "--topic", "t", "-p", "0"], "are needed together"),
    (["share-groups", "describe"], "either GROUP or --all-groups"),
    (["share-groups", "describe", "g", "--all-groups"], "either GROUP or --all-groups"),
    (["share-groups", "describe", "g", "--state", "--members"], "exclude each other"),
    (["share-groups", "describe", "g", ""], "must not be empty"),
    (["share-groups", "delete", "g", " "], "must not be empty"),
    (["share-groups", "delete"], "Missing argument 'GROUP...'"),
    (["share-groups", "delete-offsets", "g"], "Missing option '--topic'"),
    (["share-groups", "delete-offsets", " ", "--topic", "t"], "must not be empty"),
    (
        [*RESET, "--topic", "t", "--dry-run"],
        "exactly one of --to-earliest, --to-latest, --to-datetime, --to-offset, --to-current",
    ),
    (
        [*RESET, "--topic", "t", "--to-offset", "0", "--to-latest", "--dry-run"],
        "exactly one of --to-earliest",
    ),
    ([*RESET, "--to-latest", "--dry-run"], "exactly one of --topic, --all-topics and --from-file"),
    (
        [*RESET, "--topic", "t", "--all-topics", "--to-latest", "--dry-run"],
        "exactly one of --topic, --all-topics and --from-file",
    ),
    (
        [*RESET, "--from-file", "-", "--topic", "t", "--dry-run"],
        "exactly one of --topic, --all-topics and --from-file",
    ),
    ([*RESET, "--from-file", "-", "--to-latest", "--dry-run"], "exactly one of --to-earliest"),
    ([*RESET, "--topic", "t", "--to-latest"], "exactly one of --dry-run and --execute"),
    (
        [*RESET, "--topic", "t", "--to-latest", "--dry-run", "--execute"],
        "exactly one of --dry-run and --execute",
    ),
    (
        [*RESET, "--topic", "t", "--to-latest", "--dry-run", "--export", "--json"],
        "--export and --json exclude each other",
    ),
    ([*RESET, "--topic", "t:", "--to-latest", "--dry-run"], "'' in 't:' is not a partition"),
    ([*RESET, "--topic", "t:0,x", "--to-latest", "--dry-run"], "'x' in 't:0,x' is not a partition"),
    ([*RESET, "--topic", f"t:{1 << 31}", "--to-latest", "--dry-run"], "is not a partition"),
    ([*RESET, "--topic", ":0", "--to-latest", "--dry-run"], "has no topic"),
    ([*RESET, "--topic", "t", "--to-offset", "-1", "--dry-run"], "is not in the range"),
    (
        [*RESET, "--topic", "t", "--to-datetime", "yesterday", "--dry-run"],
        "'yesterday' is not YYYY-MM-DDTHH:mm:SS.sss",
    ),
    (
        [*RESET, "--topic", "t", "--to-datetime", "2026-01-31", "--dry-run"],
        "'2026-01-31' is not YYYY-MM-DDTHH:mm:SS.sss",
    ),
    (
        [*RESET, "--topic", "t", "--to-datetime", "2026-02-30T00:00:00.000", "--dry-run"],
        "day is out of range",
    ),
    ([*RESET, "--topic", "t", "--to-datetime", "1969-12-31T23:59:59.999", "--dry-run"], "is before 1970"),
    ([*RESET, "--from-file", "/no/such/file", "--dry-run"], "No such file"),
    (["groups", "list", "--group-type", "private"], "'private' is not one of"),
    (["groups", "list", "--type", "share,"], "'' is not one of classic, consumer, share, streams"),
    (["groups", "list", "--state", "Full"], "'Full' is not one of Empty, Stable"),
    (["groups", "list", "--share", "--protocol", "share"], "exclude each other"),
    (["groups", "list", "--consumer", "--share"], "exclude each other"),
    (["groups", "describe"], "either GROUP or --all-groups"),
    (["groups", "describe", "--group", "g", "--all-groups"], "either GROUP or --all-groups"),
    (["groups", "describe", "g", "--offsets", "--state"], "exclude each other"),
    (["groups", "describe", "--group", ""], "must not be empty"),
    (["groups", "delete"], "either GROUP or --all-groups"),
    (["groups", "delete-offsets", "--topic", "t"], "either GROUP or --all-groups"),
    (["groups", "delete-offsets", "g", "-g", "h", "--topic", "t"], "exactly one GROUP is needed"),
    (["groups", "delete-offsets", "g"], "Missing option '--topic'"),
    (
        [*CONSUMER_RESET, "--topic", "t"],
        "exactly one of --to-earliest, --to-latest, --to-datetime, --to-offset, --to-current, --from-file",
    ),
    (
        [*CONSUMER_RESET, "--topic", "t", "--shift-by", "0", "--to-latest"],
        "--from-file, --shift-by and --by-duration is needed",
    ),
    ([*CONSUMER_RESET, "--to-latest"], "exactly one of --topic, --all-topics and --from-file"),
    (
        [*CONSUMER_RESET, "--topic", "t", "--to-latest", "--dry-run", "--execute"],
        "--dry-run and --execute exclude each other",
    ),
    (
        [*CONSUMER_RESET, "--topic", "t", "--to-latest", "--export", "--json"],
        "--export and --json exclude each other",
    ),
    ([*CONSUMER_RESET, "--topic", "t", "--by-duration", "1h"], "'1h' is not PnDTnHnMnS"),
    ([*CONSUMER_RESET, "--topic", "t", "--shift-by", "far"], "'far' is not a valid integer"),
    ([*CONSUMER_RESET, "--all-groups", "--topic", "t", "--to-latest"], "either GROUP or --all-groups"),
    (
        ["consume", "t", "--from", "latest", "--from-beginning"],
        "--from and --from-beginning exclude each other",
    ),
    (["consume", "t", "--group-protocol", "classic"], "--group-protocol needs --group"),
    (["consume", "t", "--group", "g", "--from", "5"], "--group excludes --partition and --from OFFSET"),
    (["consume", "t", "--group", "g", "--partition", "0"], "--group excludes --partition and --from OFFSET"),
    (["consume", "t", "--group", ""], "must not be empty"),
    (["configs", "describe", "--group", ""], "must not be empty"),
]


@pytest.mark.parametrize(
    ("arguments", "text"), WRONG_USAGE, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_wrong_usage(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == USAGE
    output = capsys.readouterr()
    assert text in output.err
    assert output.err.startswith("kbroker: ")
    assert output.err.count("\n") == 1
    assert output.out == ""


@pytest.mark.parametrize("arguments", NEEDS_A_BROKER, ids=" ".join)
def test_no_broker(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("KBROKER_BOOTSTRAP", f"127.0.0.1:{port}")
    assert run(arguments) == UNREACHABLE
    output = capsys.readouterr()
    assert output.out == ""
    assert (
        output.err
        == f"kbroker: cannot connect to 127.0.0.1:{port}: Connection refused; is the broker running there?\n"
    )


def test_produce_without_a_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lines").write_text("one\ntwo\n")
    assert run(["produce", "t", str(tmp_path / "lines"), "-b", f"127.0.0.1:{free_port()}"]) == UNREACHABLE
    assert "cannot connect" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KafkaError(ErrorCode.unknown_topic_or_partition), REFUSED, "kbroker: unknown topic or partition\n"),
        (KafkaError(ErrorCode.invalid_config, "Invalid value"), REFUSED, "kbroker: Invalid value\n"),
        (BrokerUnreachable("no answer"), UNREACHABLE, "kbroker: no answer\n"),
        (CommandFailed("3 failed"), REFUSED, "kbroker: 3 failed\n"),
        (KeyboardInterrupt(), INTERRUPTED, ""),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            REFUSED,
            "kbroker: [Errno 28] No space left on device\n",
        ),
    ],
)
def test_each_error_has_its_line_and_code(
    error: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_of(error) == code
    assert capsys.readouterr().err == text


def test_a_bug_is_not_dressed_up() -> None:
    with pytest.raises(ZeroDivisionError):
        end_of(ZeroDivisionError())


@pytest.mark.parametrize(
    ("redirection", "text"), [(">/dev/full", "kbroker: [Errno 28] No space left on device\n"), ("| true", "")]
)
def test_an_output_that_takes_nothing(redirection: str, text: str) -> None:
    line = f"set -o pipefail; {sys.executable} -m kbroker --help {redirection}"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (REFUSED, text)


def test_closed_streams_are_opened_as_devnull() -> None:
    line = f"{sys.executable} -m kbroker --version <&- >&- 2>&-"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (OK, "", "")


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


ALL_COMMANDS = list(commands(cli))


@pytest.mark.parametrize(("path", "command"), ALL_COMMANDS, ids=[" ".join(path) for path, _ in ALL_COMMANDS])
def test_every_command_has_help(
    path: tuple[str, ...], command: click.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*path, "--help"]) == OK
    assert capsys.readouterr().out.startswith("Usage: kbroker")
    assert command.help


def test_the_summaries_shown_without_importing_are_those_of_the_commands() -> None:
    first_lines = {
        path[0]: (command.help or "").split("\n")[0] for path, command in ALL_COMMANDS if len(path) == 1
    }
    assert first_lines == {name: entry.summary for name, entry in COMMANDS.items()}


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from kbroker.cli import run; run(['--help']); print([m for m in sys.modules if "
        "'confluent' in m or 'trio' == m])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.endswith("[]\n")


def test_the_broker_imports_no_test_tools() -> None:
    """They are installed here: importing them takes longer than all the rest of a start."""
    code = (
        "import sys, kbroker.server.run; "
        "print([m for m in ('hypothesis', 'pytest', '_pytest', 'numpy') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "[]\n"


def test_the_broker_imports_what_few_need_late() -> None:
    """The extra kbroker[security], and the HTTP client that reads key sets."""
    code = (
        "import sys, kbroker.server.run; "
        "print([m for m in ('cryptography', 'joserfc', 'http.client') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "[]\n"


def test_the_reference_is_made_from_the_help() -> None:
    assert CLI_DOC.read_text() == render(), "run `make docs`"


def test_every_command_and_option_is_documented() -> None:
    check_documented(cli, "kbroker", CLI_DOC)


def check_documented(root: click.Command, program: str, page: Path) -> None:
    sections = {
        line.removeprefix("## ").strip("` "): body
        for line, _, body in (part.partition("\n") for part in page.read_text().split("\n## "))
    }
    for path, command in commands(root):
        if not path or isinstance(command, click.Group):
            continue
        name = " ".join((program, *path))
        assert name in sections, f"{page} has no section for {name}"
        for parameter in command.params:
            for option in (name for name in parameter.opts if name.startswith("--")):
                assert re.search(rf"^\| [^|]*`(?:[^`|]*[ ,])?{option}[ ,`]", sections[name], re.MULTILINE), (
                    f"{page} does not list {option} of {name}"
                )
            if isinstance(parameter, click.Argument):
                assert str(parameter.human_readable_name) in sections[name].replace(".", "")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("a.b:9092", "a.b", 9092), ("[::1]:1", "::1", 1), ("127.0.0.1:65535", "127.0.0.1", 65535)],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = AddressType().convert(text, None, None)
    assert (address.host, address.port, str(address)) == (host, port, text)


BAD_PORTS = ["", ":1", "h:", "h:x", "h:65536", "h:-1", "h:1_0", "h:²"]
BAD_HOSTS = ["::1:1", "a:1:2", "[::1:1", "[h]:1", "h h:1", "h\n:1", "h..:1", "x" * 64 + ":1"]


@pytest.mark.parametrize("text", BAD_PORTS + BAD_HOSTS)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(click.BadParameter):
        AddressType().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "since_1970_ms"),
    [
        ("1970-01-01T00:00:00.000", 0),
        ("2026-01-31T08:09:10.123", 1_769_846_950_123),
        ("2026-01-31T08:09:10.123Z", 1_769_846_950_123),
        ("2026-01-31T08:09:10.123+02:00", 1_769_839_750_123),
        ("2026-01-31T08:09:10.123-0530", 1_769_866_750_123),
        ("2026-01-31T08:09:10.123+02", 1_769_839_750_123),
        ("2026-01-31T08:09:10", 1_769_846_950_000),
        ("2026-01-31T08:09", 1_769_846_940_000),
        ("2026-01-31 08:09", 1_769_846_940_000),
    ],
)
def test_times(text: str, since_1970_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """UTC without a zone, whatever the local time zone is."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert DateTimeType().convert(text, None, None) == since_1970_ms
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("P1D", 86_400_000),
        ("PT1H30M", 5_400_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt0.001s", 1),
        ("PT0S", 0),
        ("PT36H", 129_600_000),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert DurationType().convert(text, None, None) == milliseconds


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0), ("500ms", 500), ("1s", 1000), ("1.5s", 1500), ("10m", 600_000), ("1h", 3_600_000),
        ("30d", 2_592_000_000),
        ("1h30m", 5_400_000), (" 1h 30m ", 5_400_000), ("90m", 5_400_000), ("0s", 0), ("1w", 604_800_000),
        ("1w2d", 777_600_000),
    ],
)  # fmt: skip
def test_spans(text: str, milliseconds: int) -> None:
    assert parse_span(text) == milliseconds
    assert parse_span(span_text(milliseconds)) == milliseconds


@pytest.mark.parametrize(
    "text",
    ["", "5", "1.5", "-1s", "s", "1 hour", "1H", "1e3s", "1s1", "PT1S", "\u0665s", "1..5s", "9" * 20 + "d"],
)
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(ValueError, match="write 500ms, 30s, 10m, 1h or 30d"):
        parse_span(text)


def test_spans_are_shown_in_their_greatest_unit() -> None:
    shown = ["forever", "0s", "1ms", "1500ms", "1m", "90s", "1d"]
    assert [span_text(each) for each in (-1, 0, 1, 1500, 60_000, 90_000, 86_400_000)] == shown


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "1D", "PT1D", "P1H", "PT-1H", "PT1.5H", "PT1S ", "PT1S1S"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter):
        DurationType().convert(text, None, None)


def test_a_value_may_contain_anything() -> None:
    assert NameValue().convert(" a = b=c ", None, None) == ("a", "b=c")
    assert NameValue().convert("a=", None, None) == ("a", "")
