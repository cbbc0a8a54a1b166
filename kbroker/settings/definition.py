"""What a setting is: its name, type, bounds, default and meaning, and how its text becomes a value.

The tables of topic, group and broker settings are made of `ConfigDef`. Texts are read the way Kafka
reads them (trimmed, booleans in any case, lists split at commas) and refused with Kafka's messages,
as `ValueError`: only the caller knows whether a client or an operator has to hear it. Knows no
particular setting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

Value: TypeAlias = int | float | bool | str | tuple[str, ...]
INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
_INTEGER = re.compile(r"[+-]?[0-9]+")
_BOOLEANS = {"true": True, "false": False}


class ConfigType(IntEnum):
    """The type codes of DescribeConfigs (v3 and later)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(IntEnum):
    """Where a value comes from: the source codes of DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDef:
    """One setting. `default` is text, or None where being unset means something of its own.

    `only` lists the values that mean what this broker does, where Kafka knows more; `reason` says
    why there are no others. `synonyms`: the broker settings that give the default, the first one
    that is set wins; each with the factor that turns its value into this setting's unit. `dynamic`:
    may be altered while the broker runs. `hidden`: works, but is not listed. `ignores_case`: a
    choice is one in any letter case. `fault` says what is wrong with a typed value, or None.
    """

    name: str
    type: ConfigType
    default: str | None
    doc: str
    minimum: int | float | None = None
    maximum: int | float | None = None
    choices: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    reason: str = ""
    synonyms: tuple[tuple[str, int], ...] = ()
    dynamic: bool = False
    hidden: bool = False
    ignores_case: bool = False
    fault: Callable[[Value], str | None] | None = None

    def parse(self, text: str) -> Value:
        """The typed value of `text`; raises ValueError with a message for whoever set it."""
        text = text.strip()
        value = _READERS[self.type](self, text)
        if isinstance(value, int | float) and self.minimum is not None and value < self.minimum:
            raise self._invalid(text, f"Value must be at least {self.minimum}")
        if isinstance(value, int | float) and self.maximum is not None and value > self.maximum:
            raise self._invalid(text, f"Value must be no more than {self.maximum}")
        if (
            self.choices
            and (value.lower() if self.ignores_case and isinstance(value, str) else value) not in self.choices
        ):
            raise self._invalid(text, f"String must be one of: {', '.join(self.choices)}")
        if self.only and to_text(value) not in self.only:
            raise self._invalid(text, f"kbroker takes only {_listed(self.only)} here: {self.reason}")
        if self.fault is not None and (why := self.fault(value)) is not None:
            raise self._invalid(text, why)
        return value

    def default_value(self) -> Value | None:
        return None if self.default is None else self.parse(self.default)

    def _invalid(self, text: str, why: str) -> ValueError:
        return ValueError(f"Invalid value {text} for configuration {self.name}: {why}")

    def _boolean(self, text: str) -> Value:
        value = _BOOLEANS.get(text.lower())
        if value is None:
            raise self._invalid(text, "Expected value to be either true or false")
        return value

    def _integer(self, text: str) -> Value:
        limit = LONG_MAX if self.type is ConfigType.LONG else INT_MAX
        # The length first: Python refuses to convert absurdly long digit strings with an error of
        # its own.
        value = int(text) if len(text) <= 20 and _INTEGER.fullmatch(text) else None
        if value is None or not -limit - 1 <= value <= limit:
            raise self._invalid(text, f"Not a number of type {self.type.name}")
        return value

    def _double(self, text: str) -> Value:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self._invalid(text, "Not a number of type DOUBLE")
        return value

    def _list(self, text: str) -> Value:
        return tuple(part.strip() for part in text.split(",")) if text else ()

    def _string(self, text: str) -> Value:
        return text


_READERS = {
    ConfigType.BOOLEAN: ConfigDef._boolean,
    ConfigType.STRING: ConfigDef._string,
    ConfigType.INT: ConfigDef._integer,
    ConfigType.SHORT: ConfigDef._integer,
    ConfigType.LONG: ConfigDef._integer,
    ConfigType.DOUBLE: ConfigDef._double,
    ConfigType.LIST: ConfigDef._list,
}


def to_text(value: Value) -> str:
    """The one way to write a value down: what is stored and described."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def by_name(*defs: ConfigDef) -> dict[str, ConfigDef]:
    """A table in the order given. Checks that every default is a value that its own definition
    takes."""
    table = {each.name: each for each in defs}
    assert len(table) == len(defs), "a setting is defined twice"
    for each in defs:
        each.default_value()
    return table


def _listed(values: tuple[str, ...]) -> str:
    return " or ".join(value or "the empty value" for value in values)
