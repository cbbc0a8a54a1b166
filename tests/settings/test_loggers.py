"""Levels of loggers by Kafka's names. tests/differential compares the codes with Kafka's."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.settings.altering import ConfigChange, ConfigOperation
from kbroker.settings.loggers import LEVELS, ROOT, alter_loggers, logger_rows

NAME = "kbroker.tests.levels.child"
PARENT = "kbroker.tests.levels"
"""Python has no logger of this name until somebody asks for it."""


@pytest.fixture(autouse=True)
def made() -> Iterator[None]:
    logging.getLogger(NAME)
    root_level = logging.root.level
    yield
    logging.root.setLevel(root_level)
    for name in (NAME, PARENT):
        logging.getLogger(name).setLevel(logging.NOTSET)


def level_of(name: str) -> str | None:
    (row,) = logger_rows({name})
    return row.value


def change(name: str, value: str | None, operation: int = ConfigOperation.SET) -> None:
    alter_loggers([ConfigChange(name, operation, value)], validate_only=False)


@pytest.mark.parametrize(("name", "number"), LEVELS.items())
def test_each_level(name: str, number: int) -> None:
    """CFG-61"""
    change(NAME, name)
    assert logging.getLogger(NAME).level == number
    assert level_of(NAME) == name


@pytest.mark.parametrize(("number", "shown"), [(1, "TRACE"), (7, "TRACE"), (25, "INFO"), (60, "FATAL")])
def test_levels_of_python_that_kafka_does_not_have(number: int, shown: str) -> None:
    logging.getLogger(NAME).setLevel(number)
    assert level_of(NAME) == shown


def test_a_logger_without_a_level_has_that_above_it() -> None:
    """CFG-60, CFG-61: also that of a package, which no module asked Python for."""
    change(ROOT, "ERROR")
    assert level_of(NAME) == level_of(PARENT) == "ERROR"
    change(PARENT, "DEBUG")
    assert level_of(NAME) == "DEBUG"
    assert logging.getLogger(NAME).isEnabledFor(logging.DEBUG)
    change(PARENT, None, ConfigOperation.DELETE)
    assert level_of(NAME) == "ERROR"


def test_one_bad_change_refuses_all() -> None:
    """CFG-63"""
    before = level_of(NAME)
    bad = [ConfigChange(NAME, 0, "TRACE"), ConfigChange(PARENT, 0, "LOUD")]
    what = f"level of {PARENT} to LOUD .* levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN$"
    with pytest.raises(KafkaError, match=what) as raised:
        alter_loggers(bad, validate_only=False)
    assert raised.value.code is ErrorCode.invalid_config
    alter_loggers([ConfigChange(NAME, 0, "TRACE")], validate_only=True)
    assert level_of(NAME) == before


def test_a_name_that_no_logger_has_makes_none() -> None:
    """CFG-62: clients could otherwise have the broker keep loggers for ever."""
    with pytest.raises(KafkaError) as raised:
        change("no.such.logger", "INFO")
    assert raised.value.code is ErrorCode.invalid_config
    assert "no.such.logger" not in logging.root.manager.loggerDict
    assert logger_rows({"no.such.logger"}) == []
