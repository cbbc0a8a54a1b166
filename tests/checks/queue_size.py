"""How large the code of queues is, and how often it says the same: what a change of a rule costs.

    python -m tests.checks.queue_size [DIRECTORY]

DIRECTORY is another checkout. The figures:

- `files`, `lines`: of the subject, all that decides on, saves and loads a record's life.
- `arrows`: imports of one module by another inside kbroker/share and kbroker/broker/queues.
- `writers`: functions outside of the rules that write a record's state or delivery count.
- `mentions`: modules whose code names a setting of redelivery, or a table made of one. To ask
  kbroker/share/rules.py what becomes of a record is no mention: it does not change with the rule.
- `plugin`: lines of the persister control-records, which is in a distribution of its own.
- `verbs`: methods of the persister's interfaces, and `flags`: their switches.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDERS: Final = (
    "share",
    "broker/queues",
    "broker/persisters",
    "share_state",
    "groups/share",
    "storage/segment_state",
)
FORMATS: Final = (
    "control_records",
    "parked_records",
    "record_keys",
    "schedule_headers",
    "share_records",
)
PLUGIN: Final = "plugins/kbroker-control-records/kbroker_control_records"
ENGINE: Final = ("share", "broker/queues")
RULES: Final = "share/rules.py"
_COLUMNS: Final = {"states", "counts"}
_FIELDS: Final = {"code", "count", "delivery_count"}
_WRITERS: Final = {"_set_code", "_set_codes", "set_code", "set_codes"}
_COUNTS_MEMBERS: Final = "share/held.py"
"""Its `counts` are of members, not of records."""
REDELIVERY: Final = {
    "COUNT_UP",
    "delivery_count_limit",
    "delivery_limit",
    "given_back",
    "given_back_pending",
    "redelivery",
}


def subject(package: Path) -> list[Path]:
    files = [path for folder in FOLDERS for path in (package / folder).rglob("*.py")]
    files += [package / "formats" / f"{name}.py" for name in FORMATS]
    return sorted(path for path in files if path.exists())


def plugin(package: Path) -> list[Path]:
    """None in a checkout from before it was a plugin: its files are in the subject there."""
    return sorted((package.parent / PLUGIN).rglob("*.py"))


def _parsed(package: Path, *folders: str) -> dict[str, ast.Module]:
    return {
        str(path.relative_to(package)): ast.parse(path.read_text())
        for folder in folders
        for path in sorted((package / folder).rglob("*.py"))
    }


def arrows(package: Path) -> set[tuple[str, str]]:
    trees = _parsed(package, *ENGINE)
    names = {f"kbroker.{name.removesuffix('.py').replace('/', '.')}": name for name in trees}
    return {
        (name, names[imported])
        for name, tree in trees.items()
        for imported in _imports(tree)
        if imported in names and names[imported] != name
    }


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def writers(package: Path) -> list[str]:
    """FILE:FUNCTION, sorted."""
    return sorted(
        f"{name}:{function.name}"
        for name, tree in _parsed(package, *ENGINE).items()
        if name not in (RULES, _COUNTS_MEMBERS)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name != "__init__"
        if any(map(_writes, ast.walk(function)))
    )


def _writes(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _WRITERS
    if isinstance(node, ast.Assign):
        targets = [each for target in node.targets for each in _flat(target)]
    elif isinstance(node, ast.AugAssign):
        targets = [node.target]
    else:
        return False
    return any(map(_is_state, targets))


def _flat(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple):
        yield from target.elts
    else:
        yield target


def _is_state(target: ast.expr) -> bool:
    if isinstance(target, ast.Subscript):
        column = target.value
        name = column.attr if isinstance(column, ast.Attribute) else getattr(column, "id", "")
        return name in _COLUMNS
    return isinstance(target, ast.Attribute) and target.attr in (_FIELDS | _COLUMNS)


def mentions(package: Path) -> list[str]:
    return [name for name, tree in _parsed(package, *ENGINE).items() if _names(tree) & REDELIVERY]


def _names(tree: ast.Module) -> set[str]:
    return {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name)
    }


def verbs(package: Path) -> tuple[list[str], list[str]]:
    """Methods and flags of the classes of share/persister.py that are interfaces."""
    tree = ast.parse((package / "share/persister.py").read_text())
    interfaces = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        if any(getattr(base, "id", "") in ("ABC", "Protocol") for base in node.bases)
    ]
    methods = [
        each.name
        for interface in interfaces
        for each in interface.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    flags = [
        each.target.id
        for interface in interfaces
        for each in interface.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]
    return methods, flags


def figures(package: Path) -> dict[str, int]:
    files = subject(package)
    methods, flags = verbs(package)
    return {
        "files": len(files),
        "lines": sum(len(path.read_text().splitlines()) for path in files),
        "plugin": sum(len(path.read_text().splitlines()) for path in plugin(package)),
        "arrows": len(arrows(package)),
        "writers": len(writers(package)),
        "mentions": len(mentions(package)),
        "verbs": len(methods),
        "flags": len(flags),
        "kbroker": sum(len(path.read_text().splitlines()) for path in package.rglob("*.py")),
    }


if __name__ == "__main__":
    found = Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "kbroker"
    print(json.dumps(figures(found), indent=4))
    for line in writers(found):
        print(f"  writes: {line}")
    for line in mentions(found):
        print(f"  mentions: {line}")
