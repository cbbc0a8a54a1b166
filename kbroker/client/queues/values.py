"""Values of settings of queues as people and programs write them, and as texts of configs.

For options, for files and for calls: `delay` is "10s" or timedelta(seconds=10) there, and 10000 in
the config.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta

from ...settings.definition import INT_MAX, LONG_MAX, ConfigType, to_text
from ..spans import FOREVER, parse_span, span_text
from .advice import QueueDifference
from .plan import Difference
from .settings import DEAD_LETTER_TOPIC, SETTINGS, Kind, Part, Setting

_NO_LIMIT = "-1"
_SWITCHED = ("false", "true")
_WRITTEN_AS: Mapping[Kind, tuple[type, ...]] = {
    Kind.COUNT: (str, int, float),
    Kind.FACTOR: (str, int, float),
    Kind.SWITCH: (str, bool),
    Kind.FLAG: (str, bool),
    Kind.WORD: (str,),
    Kind.TEXT: (str,),
}
"""Types of values in a file; an option's value is always a string."""


def text_of(setting: Setting, value: object) -> str:
    """The text of the setting's config. Raises ValueError with a line that names the allowed
    values."""
    if setting.kind is Kind.DURATION:
        return _duration(setting, value)
    if setting.switch is not None and str(value).lower() in _SWITCHED and isinstance(value, str | bool):
        return setting.switch[_SWITCHED.index(str(value).lower())]
    if (
        setting.switch is None
        and isinstance(value, str | int | float)
        and type(value) in _WRITTEN_AS[setting.kind]
    ):
        with suppress(ValueError):
            return to_text(setting.definition.parse(to_text(value)))
    raise ValueError(f"{value!r} is not {_allowed(setting)}")


def _duration(setting: Setting, value: object) -> str:
    definition = setting.definition
    least, most = definition.minimum, definition.maximum
    if most is None:
        most = LONG_MAX if definition.type is ConfigType.LONG else INT_MAX
    if least == -1 and value == FOREVER:
        return _NO_LIMIT
    if isinstance(value, timedelta) and value >= timedelta():
        duration_ms = round(value / timedelta(milliseconds=1))
        value = span_text(duration_ms)
    elif not isinstance(value, str) and (isinstance(value, bool) or value != 0):
        raise ValueError(f"{value!r} is not a duration: write '500ms', '30s', '10m', '1h' or '30d'")
    else:
        duration_ms = parse_span(str(value))
    if duration_ms > most:
        raise ValueError(f"{value!r} is more than {span_text(int(most))}, the maximum")
    if least is not None and duration_ms < least:
        raise ValueError(f"{value!r} is less than {span_text(int(least))}, the minimum")
    return str(duration_ms)


def _allowed(setting: Setting) -> str:
    definition = setting.definition
    if setting.kind in (Kind.SWITCH, Kind.FLAG):
        return "true or false"
    if definition.choices:
        return f"one of {', '.join(definition.choices)}"
    if setting.kind is Kind.TEXT:
        return "a text"
    noun = "a whole number" if setting.kind is Kind.COUNT else "a number"
    if definition.minimum is None:
        return noun
    if definition.maximum is None:
        return f"{noun} of at least {definition.minimum}"
    return f"{noun} from {definition.minimum} to {definition.maximum}"


def shown(setting: Setting, text: str | None) -> str:
    """A config's text in the form that people write."""
    if text is None:
        return "not known"
    if setting.kind is Kind.DURATION:
        return span_text(int(text))
    if setting.switch is not None:
        return _SWITCHED[setting.switch.index(text)]
    value = setting.definition.parse(text)
    if isinstance(value, float) and float(short := f"{value:g}") == value:
        return short
    return to_text(value)


def value_of(setting: Setting, text: str) -> str | int | float | bool | timedelta:
    """A config's text as a program writes it: the inverse of text_of."""
    if setting.kind is Kind.DURATION:
        return FOREVER if text == _NO_LIMIT else timedelta(milliseconds=int(text))
    if setting.switch is not None:
        return bool(setting.switch.index(text))
    value = setting.definition.parse(text)
    return to_text(value) if isinstance(value, tuple) else value


def written(difference: Difference) -> QueueDifference:
    part, config, present, wanted = difference
    if config is None:
        return QueueDifference(None, present, None)
    for each in SETTINGS.values():
        if (each.part, each.config) == (part, config):
            return QueueDifference(each.name, shown(each, present), shown(each, wanted))
    name = (
        "dead-letters"
        if config == DEAD_LETTER_TOPIC
        else f"dead letter topic: {config}"
        if part is Part.DEAD_LETTERS
        else config
    )
    return QueueDifference(name, "not set" if present is None else present or "none", wanted or "none")
