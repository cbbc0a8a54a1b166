"""The levels of the process's loggers, as settings of the resource BROKER_LOGGER (KIP-412).

Names are those of Python's loggers, which are the modules of kbroker and of its libraries, and the
packages above them: a level of `kbroker.server` is that of all modules below it, unless they have
their own. `root` is above all. A level lasts until the broker stops; that of `root` is at the start
`--log-level`, which SIGHUP may read again.

| Kafka | TRACE | DEBUG | INFO | WARN | ERROR | FATAL |
| --- | --- | --- | --- | --- | --- | --- |
| Python | 5 | DEBUG (10) | INFO (20) | WARNING (30) | ERROR (40) | CRITICAL (50) |
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Final

from kbroker.errors import ErrorCode, KafkaError
from kbroker.settings.altering import (
    ConfigChange,
    ConfigOperation,
    ConfigRow,
    refuse_duplicates,
    refuse_nulls,
)
from kbroker.settings.definition import ConfigType, Source

RESOURCE_TYPE: Final = 8
ROOT: Final = "root"
LEVELS: Final = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_NAMES: Final = tuple(LEVELS)
_NUMBERS: Final = tuple(LEVELS.values())


def logger_rows(names: Collection[str] | None = None) -> list[ConfigRow]:
    """The level of every logger, or of those of `names`, in the order of their names. Unknown names
    have no row."""
    return [_row(name) for name in _known() if names is None or name in names]


def alter_loggers(changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
    """Set levels, or delete them: a logger without one has that of the next one above it. Raises
    KafkaError, with all levels as they were, if any change is refused."""
    refuse_duplicates([change.name for change in changes])
    refuse_nulls(
        [each.name for each in changes if each.value is None and each.operation != ConfigOperation.DELETE]
    )
    known = frozenset(_known())
    levels = [(change.name, _level(change, known)) for change in changes]
    if not validate_only:
        for name, level in levels:
            _logger(name).setLevel(level)


def _level(change: ConfigChange, known: Collection[str]) -> int:
    name, operation, value = change
    if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
        named = (
            ConfigOperation(operation).name
            if operation in tuple(ConfigOperation)
            else f"Unknown operation type {operation}"
        )
        what = f"{named} operation is not allowed for the BROKER_LOGGER resource"
        raise KafkaError(ErrorCode.invalid_request, what)
    if name not in known:
        raise KafkaError(ErrorCode.invalid_config, "A logger of this name does not exist.")
    if operation == ConfigOperation.DELETE:
        if name == ROOT:
            what = "Removing the log level of the root logger is not allowed"
            raise KafkaError(ErrorCode.invalid_request, what)
        return logging.NOTSET
    if value not in LEVELS:
        levels = ", ".join(sorted(LEVELS))
        what = (
            f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
            f"Valid log levels are {levels}"
        )
        raise KafkaError(ErrorCode.invalid_config, what)
    return LEVELS[value]


def _known() -> list[str]:
    """Also the packages of loggers, for which Python has no logger yet."""
    return [ROOT, *sorted(logging.root.manager.loggerDict)]


def _logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _row(name: str) -> ConfigRow:
    """A level between two of Kafka's is the lower one."""
    level = _logger(name).getEffectiveLevel()
    value = _NAMES[max(bisect_right(_NUMBERS, level) - 1, 0)]
    return ConfigRow(
        name, value, Source.LOGGER, (), read_only=False, type=ConfigType.UNKNOWN, documentation=""
    )
