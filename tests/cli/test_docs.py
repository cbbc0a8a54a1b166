"""`kbroker docs`: every page of docs/ can be read without the repository. No broker is needed."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.cli import docs as docs_command
from kbroker.cli import run
from kbroker.cli.exits import OK, REFUSED, USAGE

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docs").rglob("*.md"))


def name_of(path: Path) -> str:
    name = str(path.relative_to(ROOT / "docs").with_suffix(""))
    return "index" if name == "README" else name.removesuffix("/README")


PAGES = {name_of(path) for path in FILES}


def test_every_page_is_listed_with_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["docs"]) == OK
    rows = [re.split("  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert rows[:2] == [["PAGE", "TITLE"], ["index", "Documents"]]
    assert {name for name, _ in rows[1:]} == PAGES
    assert ["exit-codes", "Exit codes"] in rows
    assert run(["docs", "--json"]) == OK
    assert [[each["page"], each["title"]] for each in json.loads(capsys.readouterr().out)] == rows[1:]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "docs")))
def test_a_page_is_printed_as_it_is(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its name, and by the names that a text may use for it."""
    name = str(path.relative_to(ROOT / "docs"))
    for page in (name_of(path), f"docs/{name}", f"{name}#a-section"):
        assert run(["docs", page]) == OK
        assert capsys.readouterr().out == path.read_text()


@pytest.mark.parametrize(
    ("page", "hint"),
    [
        ("setings", "did you mean settings or testing?"),
        ("group", "did you mean consumer-groups"),
        ("xyzzy", "`kbroker docs` lists the pages"),
        ("spark/README.md", "did you mean spark?"),
        ("../README.md", "`kbroker docs` lists the pages"),
    ],
)
def test_a_page_that_there_is_not(page: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["docs", page]) == USAGE
    error = capsys.readouterr().err
    assert error.startswith(f"kbroker: there is no page '{page}'; ")
    assert hint in error


def test_an_installation_without_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs_command, "FOLDER", tmp_path)
    assert run(["docs"]) == REFUSED
    assert (
        capsys.readouterr().err
        == f"kbroker: this installation of kbroker has no pages in {tmp_path}; install it again\n"
    )


def test_a_terminal_gets_a_pager(tmp_path: Path) -> None:
    """Tables are drawn to its width, and links name pages."""
    pager, paged = tmp_path / "pager", tmp_path / "paged"
    pager.write_text(f"#!/bin/sh\ncat > {paged}\n")
    pager.chmod(0o755)
    person, terminal = pty.openpty()
    env = {**os.environ, "PAGER": str(pager), "COLUMNS": "80", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "kbroker", "docs", "exit-codes"], stdin=terminal, stdout=terminal, env=env
    )
    os.close(terminal)
    assert process.wait(timeout=60) == OK
    os.close(person)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", paged.read_text()).splitlines()
    assert any("Exit codes" in line for line in lines[:3])
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "| code |" not in text
    assert "](" not in text


def strings(path: Path) -> Iterator[str]:
    """All strings of a module, without docstrings of modules, classes and attributes. A command's
    docstring is its help text."""
    tree = ast.parse(path.read_text())
    commands = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.decorator_list and isinstance(node.body[0], ast.Expr)
    }
    about = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)} - commands
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in about:
            yield node.value


TEXTS = [
    (path, text)
    for folder in ("kbroker", "plugins")
    for path in sorted((ROOT / folder).rglob("*.py"))
    for text in strings(path)
]


def test_no_text_names_a_file_that_an_installation_does_not_have() -> None:
    named = [
        (str(path.relative_to(ROOT)), text) for path, text in TEXTS if re.search(r"docs/|[\w-]\.md\b", text)
    ]
    mine = [(file, text) for file, text in named if file != "kbroker/cli/docs.py"]
    assert mine == []


def test_pages_that_are_named_exist() -> None:
    named = {page for _, text in TEXTS for page in re.findall(r"`kbroker docs ([a-z-]+)", text)}
    assert {"settings", "dead-letters"} <= named <= PAGES
