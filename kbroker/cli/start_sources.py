"""Where the options of `kbroker start` come from: the command line, the environment, the
configuration file, in this order.

    kbroker start --data-dir /var/lib/kbroker
    KBROKER_START_DATA_DIR=/var/lib/kbroker
    data-dir=/var/lib/kbroker                   a line of the file, beside the broker's settings

An error names the place of the wrong value: the option, the variable, or the file and the line. All
wrong lines of the file are reported at once. The variables have a prefix that no other command
reads, since KBROKER_ADMIN and KBROKER_BOOTSTRAP are the addresses for clients.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import click
from click.core import ParameterSource

from kbroker.cli.exits import USAGE, CommandFailed, say
from kbroker.cli.params import NameValue

logger = logging.getLogger(__name__)

PREFIX: Final = "KBROKER_START_"
CONFIG_VARIABLE: Final = f"{PREFIX}CONFIG"
_NOT_IN_THE_FILE: Final = {
    "config": "a setting is a line of its own, such as num.partitions=3",
    "config-file": "a file cannot name another one",
}
_FILE_META: Final = "kbroker.start.file"


class StartOption(click.Option):
    """An option from any of the three sources. Its errors name the source."""

    def __init__(self, *args: Any, **more: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **more)
        self.envvar = PREFIX + self.long_name.upper().replace("-", "_")
        self.show_envvar = True

    @property
    def long_name(self) -> str:
        """Its name in the file: without dashes."""
        return next(name for name in self.opts if name.startswith("--")).removeprefix("--")

    def handle_parse_result(
        self, context: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        try:
            return super().handle_parse_result(context, opts, args)
        except click.BadParameter as error:
            place = error.param_hint = origin(context, self)
            if context.get_parameter_source(self.name or "") is not ParameterSource.DEFAULT_MAP:
                raise
            # `settings` reports it together with the other lines.
            _file(context).lines[self.long_name] = (f"Invalid value for {place}", "", "", error.message)
            context.params[self.name or ""] = None
            return None, args


class SettingsOption(StartOption):
    """`--config`, only from the command line. `settings` merges it with the settings of the
    environment, which apply unless an option names them too."""

    def resolve_envvar_value(self, context: click.Context) -> str | None:
        return None


def origin(context: click.Context, option: click.Parameter | str) -> str:
    """The place of an option's value, for messages."""
    if isinstance(option, str):
        option = next(each for each in context.command.params if each.name == option)
    assert isinstance(option, StartOption)
    source = context.get_parameter_source(option.name or "")
    if source is ParameterSource.ENVIRONMENT:
        return f"{option.envvar} (environment)"
    if source is ParameterSource.DEFAULT_MAP:
        return f"{_file(context).places[option.long_name]} ({option.long_name})"
    return f"--{option.long_name}"


Line: TypeAlias = tuple[str, str, str, str]
"""(where, name, value, fault), as kbroker.settings.altering.Setting."""


class _File:
    """The configuration file. `lines`: those that are settings of the broker, and those that are
    refused, in the order of the file; None for the others. `places`: option or setting -> where
    its line is."""

    def __init__(self) -> None:
        self.lines: dict[str, Line | None] = {}
        self.places: dict[str, str] = {}

    def put(self, name: str, where: str, line: Line | None) -> None:
        """As in Java's Properties, the last line of a name applies. The others are worth a
        warning."""
        if first := self.places.pop(name, ""):
            say(f"warning: {where}: {name} is given again: this line applies, and not that of {first}")
        self.lines.pop(name, None)
        self.lines[name], self.places[name] = line, where


def _file(context: click.Context) -> _File:
    found = context.meta.setdefault(_FILE_META, _File())
    assert isinstance(found, _File)
    return found


def read_file(context: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Callback of --config-file, which is eager: its values of other options become their
    defaults."""
    if path is None:
        return None
    from kbroker.settings.altering import file_settings
    from kbroker.settings.properties import read_text

    options = {each.long_name: each for each in context.command.params if isinstance(each, StartOption)}
    file = _file(context)
    defaults: dict[str, Any] = {}
    try:
        for where, name, value, fault in file_settings(read_text(path), str(path)):
            option = options.get(name)
            if fault:
                file.lines[where] = (where, "", "", fault)
            elif name in _NOT_IN_THE_FILE:
                why = f"{name} cannot be given in the file: {_NOT_IN_THE_FILE[name]}"
                file.lines[where] = (where, "", "", why)
            elif option is None:
                file.put(name, where, (where, name, value, ""))
            elif option.multiple:
                file.lines[name], file.places[name] = None, where
                defaults[str(option.name)] = (*defaults.get(str(option.name), ()), value)
            else:
                file.put(name, where, None)
                defaults[str(option.name)] = value
    except OSError as error:
        raise CommandFailed(f"{origin(context, param)}: cannot read {path}: {error}", USAGE) from error
    context.default_map = defaults
    return path


def settings(context: click.Context, given: Mapping[str, str]) -> list[Line]:
    """The broker's settings, of which a later one overrides an earlier one, and lines of the file
    that are refused. `given`: those of the command line."""
    return [
        *(line for line in _file(context).lines.values() if line is not None),
        *_from_environment(),
        *(("--config", name, value, "") for name, value in given.items()),
    ]


def _from_environment() -> Iterator[Line]:
    seen: set[str] = set()
    for part in os.environ.get(CONFIG_VARIABLE, "").split():
        try:
            name, value = NameValue().convert(part, None, None)
        except click.BadParameter as error:
            text = (
                f"{CONFIG_VARIABLE} (environment): {error.message}; settings are separated by spaces "
                f"and must not contain any"
            )
            raise CommandFailed(text, USAGE) from error
        if name in seen:
            raise CommandFailed(f"{CONFIG_VARIABLE} (environment): {name} is given more than once", USAGE)
        seen.add(name)
        yield f"{CONFIG_VARIABLE} (environment)", name, value, ""


def start_names(context: click.Context) -> list[str]:
    """The options that a line of the file may set, besides settings."""
    names = [each.long_name for each in context.command.params if isinstance(each, StartOption)]
    return [name for name in names if name not in _NOT_IN_THE_FILE]


def check_environment(context: click.Context) -> None:
    """Raises UsageError for a variable with kbroker's prefix that names no option: a misspelled
    data directory would silently not be used."""
    known = [str(each.envvar) for each in context.command.params if isinstance(each, StartOption)]
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known:
            import difflib

            close = difflib.get_close_matches(
                name.removeprefix(PREFIX), [each.removeprefix(PREFIX) for each in known], n=1
            )
            hint = f"did you mean {PREFIX}{close[0]}?" if close else f"there are {', '.join(known)}"
            raise click.UsageError(f"environment variable {name} names no option; {hint}", context)


def read_log_level(context: click.Context, path: Path | None) -> None:
    """Set the log level to that of the configuration file, which may have changed since the start.
    Logs why not, if the level comes from elsewhere or cannot be used."""
    from kbroker.settings.altering import file_settings
    from kbroker.settings.properties import read_text

    source = context.get_parameter_source("log_level")
    if source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        logger.info("the log level stays: %s gives it", origin(context, "log_level"))
        return
    if path is None:
        logger.info("the log level stays: there is no --config-file")
        return
    if not path.is_file():
        # The start has read all that a pipe has. Reading it again could wait for a writer for ever.
        logger.error("the log level stays: %s is not a regular file now", path)
        return
    (option,) = [each for each in context.command.params if each.name == "log_level"]
    try:
        found = {each.name: each for each in file_settings(read_text(path), str(path))}
        given = found.get("log-level")
        level = option.type.convert(given.value if given else option.default, option, context)
    except (OSError, click.BadParameter) as error:
        logger.error("the log level stays: %s: %s", path, error)
        return
    logging.getLogger().setLevel(level.upper())
    logger.info("the log level is %s", level)


def said_by(context: click.Context) -> str:
    """For the log: the variables and the file that options came from; empty if there are none."""
    variables = sorted(name for name in os.environ if name.startswith(PREFIX) and os.environ[name])
    path = context.params.get("config_file")
    parts = ([f"environment {', '.join(variables)}"] if variables else []) + (
        [f"file {path}"] if path is not None else []
    )
    return " and ".join(parts)


def split_names(context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Callback for several names, which a variable or a line of the file separates by commas."""
    names = tuple(name.strip() for value in values for name in value.split(","))
    if not all(names):
        raise click.BadParameter("a name must not be empty", context, param)
    return names
