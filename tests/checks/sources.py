"""Sources read once for all checks: each file is parsed and walked one time.

Only findings are kept of a file: the trees of all files together are large, and the garbage
collector walks what is kept again and again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

_STRING_OR_COMMENT = re.compile(
    r"""
    (?: \"{3} (?:[^\\]|\\.)*? \"{3} | '{3} (?:[^\\]|\\.)*? '{3} | "(?:[^\\\n"]|\\.)*" | '(?:[^\\\n']|\\.)*' )
    | (\#[^\n]*)
    """,
    re.DOTALL | re.VERBOSE,
)
"""A quote outside of strings and comments begins a string. tokenize takes ten times as long."""


class Function(NamedTuple):
    name: str
    line: int
    lines: int


class Source(NamedTuple):
    """Of a Python file.

    - is_explained: it begins with a docstring, or is empty
    - strings: each with its first line; also parts of f-strings
    """

    is_explained: bool
    functions: tuple[Function, ...]
    strings: tuple[tuple[int, str], ...]
    attributes: frozenset[str]


@cache
def source(path: Path) -> Source:
    tree = ast.parse(path.read_text())
    functions, strings, attributes = [], [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                strings.append((node.lineno, node.value))
        elif isinstance(node, ast.Attribute):
            attributes.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            functions.append(Function(node.name, node.lineno, lines))
    is_explained = not tree.body or bool(ast.get_docstring(tree))
    return Source(is_explained, tuple(functions), tuple(strings), frozenset(attributes))


def comments(text: str) -> Iterator[tuple[int, str]]:
    """(line, comment with its #) of a Python file."""
    line, counted = 1, 0
    for match in _STRING_OR_COMMENT.finditer(text):
        if match[1]:
            line += text.count("\n", counted, match.start())
            counted = match.start()
            yield line, match[1]


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """ast.walk for a tree that is walked often. The caller clears this cache."""
    return tuple(ast.walk(tree))
