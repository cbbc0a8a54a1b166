"""The definition of a setting: its name, type, bounds, default and meaning, and how its text
becomes a value.

The tables of topic, group and broker settings consist of `ConfigDef`. Texts are parsed as in Kafka
(trimmed, booleans in any case, lists split at commas) and refused with Kafka's messages, as
`ValueError`: only the caller knows whether to report it to a client or an operator. Knows no
particular setting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

Value: TypeAlias = int | float | bool | str | tuple[str, ...]
INT_MAX = (1 << 31) - 1
ARRAY_MAX = INT_MAX - 8
"""The longest array of Java: a default of Kafka that bounds nothing."""
LONG_MAX = (1 << 63) - 1
_INTEGER = re.compile(r"[+-]?[0-9]+")
_BOOLEANS = {"true": True, "false": False}


class ConfigType(IntEnum):
    """The type codes of DescribeConfigs (v3 and later)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class Source(IntEnum):
    """Where a value comes from: the source codes of DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    LOGGER = 6
    GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDef:
    """One setting.

    - `default`: text, or None if being unset has a meaning of its own
    - `only`: the values that kbroker supports, if Kafka has more; `reason`: why only these
    - `no_effect`: why all of Kafka's values are taken, stored and described, but change nothing;
      never beside `only`
    - `synonyms`: the broker settings that provide the default; the first one that is set wins. Each
      has the factor that converts its value to this setting's unit.
    - `dynamic`: may be altered while the broker runs
    - `hidden`: works, but is not listed
    - `ignores_case`: choices are accepted in any letter case
    - `per_listener`: one listener may have a value of its own (settings/per_listener.py)
    - `fault`: returns the error of a typed value, or None
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
    no_effect: str = ""
    synonyms: tuple[tuple[str, int], ...] = ()
    dynamic: bool = False
    hidden: bool = False
    ignores_case: bool = False
    per_listener: bool = False
    fault: Callable[[Value], str | None] | None = None

    def parse(self, text: str) -> Value:
        """The typed value of `text`; raises ValueError with a message for the user."""
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

    @property
    def documentation(self) -> str:
        """The meaning, with the reason if kbroker does not do all that Kafka does."""
        if self.only:
            return f"{self.doc} Only this value: {self.reason}."
        return f"{self.doc} No effect here, because {self.no_effect}." if self.no_effect else self.doc

    @property
    def is_sensitive(self) -> bool:
        """A secret: the value is in no answer, no log line and no error."""
        return self.type is ConfigType.PASSWORD

    def _invalid(self, text: str, why: str) -> ValueError:
        text = "[hidden]" if self.is_sensitive else text
        return ValueError(f"Invalid value {text} for configuration {self.name}: {why}")

    def _boolean(self, text: str) -> Value:
        value = _BOOLEANS.get(text.lower())
        if value is None:
            raise self._invalid(text, "Expected value to be either true or false")
        return value

    def _integer(self, text: str) -> Value:
        limit = LONG_MAX if self.type is ConfigType.LONG else INT_MAX
        # Check the length first: Python raises an error of its own for absurdly long numbers.
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
    ConfigType.PASSWORD: ConfigDef._string,
}


def to_text(value: Value) -> str:
    """The canonical text of a value, as stored and described."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


class Limits(NamedTuple):
    """A default and the bounds within which it may be set."""

    default: int
    minimum: int
    maximum: int | None = None


def bounded(
    kind: str, x: str, doc: str, value: Limits, least: Limits, most: Limits, dynamic: Collection[str]
) -> Iterator[ConfigDef]:
    """The broker settings `kind`.X, `kind`.min.X and `kind`.max.X, of which the last two bound the
    values that a group may set. `dynamic`: those of "", "min." and "max." that may be altered while
    the broker runs."""
    for bound, limits, meaning in (
        ("", value, doc),
        ("min.", least, "Least value that a group may set for it."),
        ("max.", most, "Greatest value that a group may set for it."),
    ):
        yield ConfigDef(
            name=f"{kind}.{bound}{x}",
            type=ConfigType.INT,
            default=str(limits.default),
            minimum=limits.minimum,
            maximum=limits.maximum,
            dynamic=bound in dynamic,
            doc=meaning,
        )


def by_name(*defs: ConfigDef) -> dict[str, ConfigDef]:
    """A table in the order given. Checks that every default is valid."""
    table = {each.name: each for each in defs}
    assert len(table) == len(defs), "a setting is defined twice"
    for each in defs:
        each.default_value()
    return table


def _listed(values: tuple[str, ...]) -> str:
    return " or ".join(value or "the empty value" for value in values)
