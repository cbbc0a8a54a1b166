"""Base classes that exist for one subclass: what they say belongs into it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tests.checks.sources import nodes


def lone_bases(trees: Mapping[str, ast.Module]) -> list[str]:
    """Classes with one subclass, that nothing but this subclass uses: they are neither instantiated
    nor named as a type."""
    names = {module: _names(module, tree) for module, tree in trees.items()}
    classes = {
        f"{module}.{node.name}": node
        for module, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    subclasses: dict[str, list[str]] = defaultdict(list)
    users: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees.items():
        for owner, is_base, found in _references(tree):
            full = _meaning(module, found, names)
            if full in classes:
                user = f"{module}.{owner}"
                if is_base:
                    subclasses[full].append(user)
                elif user != full:
                    users[full].add(user)
    return [
        f"{base} of {below[0]}"
        for base, below in sorted(subclasses.items())
        if len(below) == 1 and not users[base] - {below[0]}
    ]


def _references(tree: ast.Module) -> Iterator[tuple[str, bool, ast.Name | ast.Attribute]]:
    """Names in the code, with the class at the top that they are in, and whether they are its
    bases."""
    for top in tree.body:
        owner = top.name if isinstance(top, ast.ClassDef) else ""
        bases = {id(each) for base in getattr(top, "bases", ()) for each in _without_index(base)}
        for node in ast.walk(top):
            if isinstance(node, ast.Name | ast.Attribute):
                yield owner, id(node) in bases, node


def _without_index(base: ast.expr) -> Iterator[ast.expr]:
    """`B` of `B` and of `B[X]`."""
    yield base.value if isinstance(base, ast.Subscript) else base


def _names(module: str, tree: ast.Module) -> dict[str, str]:
    """Names of classes and modules in this module -> what they stand for, with all dots."""
    found = {node.name: f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            origin = ".".join((*above, *((node.module,) if node.module else ())))
            found |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
    return found


def _meaning(module: str, node: ast.Name | ast.Attribute, names: Mapping[str, dict[str, str]]) -> str:
    if isinstance(node, ast.Name):
        found = names[module].get(node.id, "")
    elif isinstance(node.value, ast.Name):
        found = f"{names[module].get(node.value.id, '')}.{node.attr}"
    else:
        return ""
    while True:  # A module may have the name from another one.
        origin, _, name = found.rpartition(".")
        again = names.get(origin, {}).get(name, found)
        if again == found:
            return found
        found = again
