"""Queues in a TOML file, a table for each: read for `kbroker queues create --from`, written by
`kbroker queues export`.

    [queues.jobs]
    partitions = 1
    delay = "1s"
    dead-letters = "dlq.jobs"

    [queues.jobs.group-configs]
    "share.record.lock.duration.ms" = "45000"
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from kbroker.cli.exits import USAGE, CommandFailed
from kbroker.cli.params import COUNT, Bootstrap, bootstrap_option, connect
from kbroker.client.queues.settings import DEAD_LETTER_TOPIC, SETTINGS, Kind, Part, Wish, names, wish_of
from kbroker.client.queues.values import shown, text_of

if TYPE_CHECKING:
    from kbroker.client.rpc import Connection

_TOP: Final = "queues"
_PARTITIONS: Final = "partitions"
_DEAD_LETTERS: Final = "dead-letters"
_CONFIGS: Final[Mapping[str, Part]] = {
    "group-configs": Part.GROUP,
    "topic-configs": Part.TOPIC,
    "dead-letter-configs": Part.DEAD_LETTERS,
}
KEYS: Final = (_PARTITIONS, *SETTINGS, _DEAD_LETTERS, *_CONFIGS)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def read_wishes(file: BinaryIO) -> list[Wish]:
    """Raises CommandFailed with a line that names the file and the problem."""
    try:
        document = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(file, f"this is not TOML: {error}") from error
    try:
        _check_keys(document, (_TOP,), "")
        tables = _table(document.get(_TOP, {}), _TOP)
        if not tables:
            raise ValueError(f"there are no queues in it: each is a table [{_TOP}.NAME]")
        return [_wish(name, _table(table, f"{_TOP}.{name}")) for name, table in tables.items()]
    except ValueError as error:
        raise _wrong(file, str(error)) from error


def _wrong(file: BinaryIO, why: str) -> CommandFailed:
    return CommandFailed(f"{file.name}: {why}", USAGE)


def _wish(name: str, table: Mapping[str, Any]) -> Wish:
    if table and all(isinstance(value, dict) for value in table.values()) and not set(table) & set(KEYS):
        raise ValueError(
            f"[{_TOP}.{name}] holds no keys of a queue; a name with a dot is written "
            f'[{_TOP}."{name}.{next(iter(table))}"]'
        )
    _check_keys(table, KEYS, f" of queue {name}")
    settings = {}
    for setting in SETTINGS.values():
        if setting.name in table:
            try:
                settings[setting.name] = text_of(setting, table[setting.name])
            except ValueError as error:
                raise ValueError(f"{setting.name} of queue {name}: {error}") from error
    configs = {part: _configs(table[key], name, key) for key, part in _CONFIGS.items() if key in table}
    return Wish(
        name,
        _partitions(table.get(_PARTITIONS), name),
        _dead_letters(table.get(_DEAD_LETTERS), name),
        settings,
        configs,
    )


def _check_keys(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            raise ValueError(f"unknown key {key!r}{where}: {meant}")


def _table(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not a table: write [{name}]")
    return value


def _partitions(value: object, name: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= (COUNT.max or 0):
        raise ValueError(
            f"{_PARTITIONS} of queue {name}: {value!r} is not a whole number from 1 to {COUNT.max}"
        )
    return value


def _dead_letters(value: object, name: str) -> str | None:
    """None for `true`, which means the default; an empty name for `false`, which means no topic."""
    if value is None or value is True:
        return None
    if value is False:
        return ""
    if not isinstance(value, str) or not value:
        raise ValueError(
            f"{_DEAD_LETTERS} of queue {name}: {value!r} is neither the name of a topic nor true nor false"
        )
    return value


def _configs(value: object, name: str, key: str) -> dict[str, str]:
    found = {}
    for config, content in _table(value, f"{_TOP}.{name}.{key}").items():
        if isinstance(content, dict):
            raise ValueError(
                f'{key} of queue {name}: the name of a config has dots and is quoted: "{config}.…" = "…"'
            )
        own = next(
            (each.name for each in SETTINGS.values() if each.part is _CONFIGS[key] and each.config == config),
            None,
        )
        if _CONFIGS[key] is Part.GROUP and config == DEAD_LETTER_TOPIC:
            own = _DEAD_LETTERS
        if own is not None:
            raise ValueError(f"{key} of queue {name}: {config} must be given as {own!r} outside the table")
        if not isinstance(content, str | int | float):
            raise ValueError(
                f"{config} of queue {name}: {content!r} is not a string, a number, true or false"
            )
        found[config] = json.dumps(content) if isinstance(content, bool) else str(content)
    return found


def toml_lines(wishes: Iterable[Wish]) -> Iterator[str]:
    """The inverse of read_wishes."""
    for wish in wishes:
        table = f"{_TOP}.{_key(wish.name)}"
        yield f"[{table}]"
        yield f"{_PARTITIONS} = {wish.partitions}"
        for name, text in wish.settings.items():
            yield f"{name} = {_setting(name, text)}"
        yield f"{_DEAD_LETTERS} = {_text(wish.dead_letters) if wish.dead_letters else 'false'}"
        for key, part in _CONFIGS.items():
            if part in wish.configs:
                yield ""
                yield f"[{table}.{key}]"
                yield from (f"{_text(config)} = {_text(text)}" for config, text in wish.configs[part].items())
        yield ""


def _setting(name: str, text: str) -> str:
    setting = SETTINGS[name]
    written = shown(setting, text)
    is_bare = setting.kind in (Kind.SWITCH, Kind.FLAG) or re.fullmatch(r"[0-9.]+", written)
    return written if is_bare else _text(written)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _text(content: str) -> str:
    """A basic string of TOML: the same as a JSON string, apart from one character."""
    return json.dumps(content, ensure_ascii=False).replace("\x7f", "\\u007f")


@click.command()
@click.argument("name", nargs=-1)
@bootstrap_option
def export(name: tuple[str, ...], bootstrap: Bootstrap) -> None:
    """Print queues as a file for `kbroker queues create --from`.

    Prints each NAME, or all queues, with every setting.

    \b
    Examples:
      kbroker queues export > queues.toml
      kbroker queues export jobs mails | kbroker queues create --from - -b other-host:9092
    """
    with connect(bootstrap) as connection:
        wishes = [_exported(connection, each) for each in name or names(connection)]
    for line in toml_lines(wishes):
        click.echo(line)


def _exported(connection: Connection, name: str) -> Wish:
    from kbroker.client.queues.found import existing

    return wish_of(existing(connection, name))
