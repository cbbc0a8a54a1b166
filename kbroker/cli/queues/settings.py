"""The settings of queues as options of a command and as keys of a file: both are generated from the
table in kbroker.client.queues.settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import click

from kbroker.cli.params import FOREVER, parse_span, span_text
from kbroker.client.queues.settings import SETTINGS, Kind, Setting
from kbroker.settings.definition import INT_MAX, LONG_MAX, ConfigType, to_text

F = TypeVar("F", bound=Callable[..., Any])
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


class SettingType(click.ParamType[str]):
    """Converts the value that a person writes for a setting to the text of its config."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        choices = setting.definition.choices
        self.name = "|".join(choices) if setting.kind is Kind.WORD else setting.kind.value

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> str:
        try:
            return text_of(self.setting, value)
        except ValueError as error:
            self.fail(str(error), param, context)


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
    if not isinstance(value, str) and (isinstance(value, bool) or value != 0):
        raise ValueError(f"{value!r} is not a duration: write '500ms', '30s', '10m', '1h' or '30d'")
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


def setting_options(function: F) -> F:
    """Adds an option for each setting. `settings_of` reads the command's keyword arguments."""
    for setting in reversed(list(SETTINGS.values())):
        text = f"{setting.doc}  [default: {shown(setting, setting.default)}]"
        kind = SettingType(setting)
        if setting.kind is Kind.FLAG:
            names = f"--{setting.name}/--no-{setting.name}"
            option = click.option(names, default=None, help=text)
        else:
            option = click.option(f"--{setting.name}", type=kind, metavar=kind.name, help=text)
        function = option(function)
    return function


def settings_of(options: Mapping[str, str | bool | None]) -> dict[str, str]:
    """Name of a setting -> text of its config, for each option that was given."""
    found = {name: options[name.replace("-", "_")] for name in SETTINGS}
    return {
        name: text_of(SETTINGS[name], value) if isinstance(value, bool) else value
        for name, value in found.items()
        if value is not None
    }
