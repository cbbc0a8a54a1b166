"""The settings of queues as options of a command and as keys of a file: both are generated from the
table in kbroker.client.queues.settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from kbroker.client.queues.settings import SETTINGS, Kind, Setting
from kbroker.client.queues.values import shown, text_of

F = TypeVar("F", bound=Callable[..., Any])


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
