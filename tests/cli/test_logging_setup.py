"""Log lines for people and for collectors, and which are dropped below the level."""

from __future__ import annotations

import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator

import pytest

from kbroker.cli.logging_setup import JsonLines, TextLines, set_up_logging

logger = logging.getLogger("kbroker.test")


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers, root.level = handlers, level


def lines(level: str, line_format: str, events: Callable[[], None]) -> list[str]:
    stream = io.StringIO()
    set_up_logging(level, line_format, stream)
    events()
    return stream.getvalue().splitlines()


def fail() -> None:
    try:
        raise ValueError("no such\nthing")
    except ValueError:
        logger.exception("could not %s", "do it")


def test_text() -> None:
    [line] = lines("info", "text", lambda: logger.info("%d connections", 3))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    kbroker\.test: 3 connections", line)


def test_text_with_a_traceback() -> None:
    found = lines("info", "text", fail)
    assert found[0].endswith("ERROR   kbroker.test: could not do it")
    assert "ValueError: no such" in found


def test_what_a_client_wrote_stays_in_its_line() -> None:
    [line] = lines("info", "text", lambda: logger.warning("topic %s", "a\nERROR   forged\x1b[31m\r\u2028b"))
    assert line.endswith(r"kbroker.test: topic a\nERROR   forged\x1b[31m\r\u2028b")


def test_what_a_client_wrote_stays_in_its_json() -> None:
    written = "a\nb\x1b[31m\x7f\x9b31m\u2028\U000e0001é\ud800"
    [line] = lines("info", "json", lambda: logger.warning("topic %s", written))
    assert line.isprintable()
    assert "é" in line
    assert json.loads(line)["message"] == f"topic {written}"


def test_a_json_message_has_an_end() -> None:
    [line] = lines("info", "json", lambda: logger.warning("topic %s", "x" * 1_000_000))
    assert len(line) < 2200


def test_a_text_line_has_an_end() -> None:
    [line] = lines("info", "text", lambda: logger.warning("topic %s", "x" * 1_000_000))
    assert len(line) < 2100


def test_json_is_one_line_whatever_happens() -> None:
    [line] = lines("info", "json", fail)
    event = json.loads(line)
    assert (event["level"], event["logger"], event["message"]) == ("error", "kbroker.test", "could not do it")
    assert event["exception"].endswith("ValueError: no such\nthing")
    assert set(event) == {"time", "level", "logger", "message", "exception"}


def test_both_tell_the_same_time() -> None:
    record = logging.makeLogRecord({"created": 1_000_000_000.123, "msg": "now"})
    assert json.loads(JsonLines().format(record))["time"] == "2001-09-09T01:46:40.123Z"
    assert TextLines().format(record).startswith("2001-09-09T01:46:40.123Z ")


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_levels(level: str, count: int) -> None:
    def events() -> None:
        for say in (logger.debug, logger.info, logger.warning, logger.error):
            say("something")

    assert len(lines(level, "text", events)) == count


def test_warnings_are_logged() -> None:
    def warn() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(False)
            logging.captureWarnings(True)
            warnings.warn("old use", UserWarning, stacklevel=1)

    assert any("py.warnings" in line and "old use" in line for line in lines("info", "text", warn))


def test_stderr_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", "text")
    logger.info("hello")
    captured = capsys.readouterr()
    assert (captured.out, captured.err.endswith("kbroker.test: hello\n")) == ("", True)
