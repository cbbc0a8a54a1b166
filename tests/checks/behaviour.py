"""Shows which test covers which rule of docs/rules.

    python -m tests.checks.behaviour [--json|--missing]

Prints a table; `--json`: the same for programs; `--missing`: only the rules that no test names.

A test names rules in its docstring, in a comment right above it or up to its `def` line, or, for a
script of tests/differential, in `@script("SES-3", ...)`. A class names the rules that it shows as a
whole. `GRP-4..12` names a run of rules. Sources are only parsed, so that nothing has to be
importable.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tests.checks.rules import Rule, table
from tests.checks.sources import comments

ROOT = Path(__file__).parents[2]
TESTS = (ROOT / "tests", *sorted(ROOT.glob("plugins/*/tests")))
LEFT_OUT = "left out"

_ID = re.compile(r"\b([A-Z]+)-(\d+)(?:\.\.(\d+))?\b")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def ids_in(text: str, prefixes: frozenset[str]) -> list[str]:
    """Rule ids in a text; runs such as `GRP-4..12` are expanded. Other ids of this form (KIP-932)
    are ignored."""
    found: list[str] = []
    for prefix, first, last in _ID.findall(text):
        if prefix in prefixes:
            found += (f"{prefix}-{number}" for number in range(int(first), int(last or first) + 1))
    return found


def named_rules(prefixes: frozenset[str], folders: Iterable[Path] = TESTS) -> dict[str, list[str]]:
    """Rule id -> tests that name it, as `share/test_session.py::TestEpochs::test_no_session`."""
    found: dict[str, list[str]] = defaultdict(list)
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if path.parent.name != "checks":
                for name, rule_id in _named_in(path.read_text(), prefixes):
                    found[rule_id].append(f"{path.relative_to(folder)}::{name}")
    return dict(found)


def _named_in(source: str, prefixes: frozenset[str]) -> Iterator[tuple[str, str]]:
    comment_of = dict(comments(source))
    for name, node in _definitions(ast.parse(source)):
        start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        while comment_of.get(start - 1, ""):  # the lines directly above it
            start -= 1
        texts = [
            ast.get_docstring(node) or "",
            *(comment_of.get(line, "") for line in range(start, node.body[0].lineno)),
        ]
        yield from ((name, rule_id) for text in texts for rule_id in ids_in(text, prefixes))
        yield from ((name, rule_id) for rule_id in _of_script(node))


def _definitions(parent: ast.AST, outer: str = "") -> Iterator[tuple[str, _Definition]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, _Definition):
            yield f"{outer}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node, f"{outer}{node.name}::")


def _of_script(node: _Definition) -> list[str]:
    """All strings in `@script(...)` are taken as rule ids, so that a wrong id is found."""
    calls = [
        each
        for each in node.decorator_list
        if isinstance(each, ast.Call) and ast.unparse(each.func).endswith("script")
    ]
    return [
        str(argument.value) for call in calls for argument in call.args if isinstance(argument, ast.Constant)
    ]


def prefixes_of(known: list[Rule]) -> frozenset[str]:
    return frozenset(rule.id.partition("-")[0] for rule in known)


def without_a_test(known: list[Rule], named: Mapping[str, object]) -> list[str]:
    """The rules that need a test and have none."""
    return [rule.id for rule in known if rule.id not in named and rule.state != LEFT_OUT]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For programs: a list of rules, each with its tests.")
@click.option("--missing", is_flag=True, help="Only the rules without a test.")
def main(as_json: bool, missing: bool) -> None:
    """Show which test covers which rule of docs/rules."""
    known = table().rules
    named = named_rules(prefixes_of(known))
    lacking = set(without_a_test(known, named))
    chosen = [rule for rule in known if rule.id in lacking or not missing]
    if as_json:
        print(json.dumps([{**vars(rule), "tests": named.get(rule.id, [])} for rule in chosen], indent=1))
        return
    shown = Table("rule", "what", "tests")
    for rule in chosen:
        shown.add_row(
            rule.id,
            rule.text,
            "\n".join(named.get(rule.id, [])) or ("-" if rule.id in lacking else rule.difference),
        )
    console = Console(markup=False, highlight=False)
    console.print(shown)
    left_out = sum(rule.state == LEFT_OUT for rule in known)
    console.print(
        f"{len(known)} rules: {len(known) - len(lacking) - left_out} shown, {left_out} left out, "
        f"{len(lacking)} without a test"
    )


if __name__ == "__main__":
    main()
