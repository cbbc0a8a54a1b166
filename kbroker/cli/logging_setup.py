"""Sets up logging to stderr, one line per event, as text for people or JSON for collectors.

    text    2026-01-31T12:00:00.123Z INFO    kbroker.server.listener: accepting connections
    json    {"time": "2026-01-31T12:00:00.123Z", "level": "info", "logger":
            "kbroker.server.listener", "message": "accepting connections"}

Times are UTC. A traceback follows its line in text, and is the member "exception" in JSON. Other
modules only call `logging.getLogger(__name__)`. A program that embeds the broker sets up its own
handlers instead.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO


def set_up_logging(level: str, line_format: str, stream: TextIO | None = None) -> None:
    """Log events of at least `level` (debug, info, warning, error) as `line_format` (text or json),
    in place of any set-up before.

    Python's own warnings become log lines as well. `stream` None: stderr as it is now.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter({"text": TextLines, "json": JsonLines}[line_format]())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)


MAX_LINE_LENGTH = 2000
"""The limit of a line without its traceback. Only names sent by clients make longer ones."""


class TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record).rstrip()  # Python's warnings end with a line feed.
        return escaped(_bounded(line))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _utc(record)


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _bounded(record.getMessage()),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # JSON allows line separators and control characters above 127.
        text = json.dumps(line, ensure_ascii=False)
        return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def _bounded(line: str) -> str:
    return line[:MAX_LINE_LENGTH] + ("..." if len(line) > MAX_LINE_LENGTH else "")


def escaped(text: str) -> str:
    """Lines may contain names that clients chose. They must not end a line, add another one, or
    control a terminal."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _utc(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
