"""Refusals about queues, each with what to do about it.

The command line names commands and options, a program in Python the calls and arguments of the same
meaning. Both texts are made from the same words.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class Option(NamedTuple):
    """`--force`, or `force=True`."""

    name: str


class Command(NamedTuple):
    """`kbroker queues create jobs --update`, or `create("jobs", update=True)`."""

    name: str
    queue: str | None = None
    options: tuple[Option, ...] = ()


Word: TypeAlias = str | Option | Command


class QueueRefused(Exception):
    """The queue does not exist, or cannot be created, altered, purged or deleted. The text is one
    line for a person at the command line; `in_python` for one who writes a program."""

    def __init__(self, *words: Word) -> None:
        super().__init__(_text(words, _command))
        self._words = words

    def in_python(self) -> str:
        return _text(self._words, _call)


class QueueMissing(QueueRefused):
    """There is no such queue, or only a part of one."""


class QueueDifference(NamedTuple):
    """Of a queue and a request for one, as people write settings. `setting`: the option's name, or
    the config's if there is no option. None: `present` is a sentence about a part as a whole."""

    setting: str | None
    present: str | None
    wanted: str | None

    def __str__(self) -> str:
        if self.setting is None:
            return self.present or ""
        return f"{self.setting} is {self.present}, requested is {self.wanted}"


def _text(words: tuple[Word, ...], written: Callable[[Option | Command], str]) -> str:
    return "".join(each if isinstance(each, str) else written(each) for each in words)


def _command(word: Option | Command) -> str:
    if isinstance(word, Option):
        return f"--{word.name}"
    queue = [] if word.queue is None else [shlex.quote(word.queue)]
    return f"`{' '.join(['kbroker queues', word.name, *queue, *map(_command, word.options)])}`"


def _call(word: Option | Command) -> str:
    if isinstance(word, Option):
        return f"{word.name.replace('-', '_')}=True"
    queue = [] if word.queue is None else [repr(word.queue)]
    return f"`{word.name}({', '.join([*queue, *map(_call, word.options)])})`"
