"""Measures the structure of the code: the figures that tests/checks/test_structure.py bounds.

python -m tests.checks.structure [--list]            --list: the names behind each figure

Of kbroker/, and the general ones of each other package of OTHERS.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.checks.bases import lone_bases
from tests.checks.sources import nodes

ROOT = Path(__file__).parents[2]
PACKAGE = "kbroker"
OTHERS = {
    "kbroker_client": "clients/python/src",
    "kbroker_spark": "spark/src",
    "kbroker_pipeline": "spark/src",
    "perf": ".",
}
"""Packages and the folders that they are in. Files of `_shared` are links into kbroker/."""
_LINKED = "_shared"
MAX_PARAMETERS = 7
SETTINGS = frozenset({"config", "data_dir", "durability", "state_storage", "storage"})
"""Parameters that are options of `kbroker start`; they do not count."""
SPIS = (
    "kbroker.storage.spi",
    "kbroker.share.persister",
    "kbroker.groups.assignors.spi",
    "kbroker.security.spi",
)
LONG_FILE_LINES = 600
SMALL_FILE_LINES = 80
MANY_NAMES = 5

Graph = Mapping[str, frozenset[str]]


def modules(root: Path = ROOT, package: str = PACKAGE) -> dict[str, ast.Module]:
    """Each module of the package by its dotted name."""
    found = {}
    for path in sorted((root / package).rglob("*.py")):
        if _LINKED in path.parts:
            continue
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


def imports(trees: Mapping[str, ast.Module]) -> Graph:
    """Module -> the modules of the package that it imports, also for types only."""
    return {
        name: frozenset(each for each in _imported(name, tree, trees) if each != name)
        for name, tree in trees.items()
    }


def _imported(name: str, tree: ast.Module, trees: Mapping[str, ast.Module]) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom):
            # Relative ones are in modules, not in packages.
            above = name.split(".")[: -node.level] if node.level else []
            module = ".".join((*above, *((node.module,) if node.module else ())))
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                if inner in trees:
                    yield inner
                elif module in trees:
                    yield module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in trees)


def circles(graph: Graph) -> list[list[str]]:
    """Modules that import each other in a circle: strongly connected components (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in graph:
        if name not in index:
            visit(name)
    return sorted(found)


def arrows(graph: Graph, folder: str) -> list[tuple[str, str]]:
    """Imports between the files and folders directly in `folder` (dotted), each pair once."""
    prefix = folder + "."

    def room(name: str) -> str | None:
        return name[len(prefix) :].split(".")[0] if name.startswith(prefix) else None

    pairs = {(room(name), room(other)) for name, others in graph.items() for other in others}
    return sorted((one, two) for one, two in pairs if one and two and one != two)


def long_constructors(trees: Mapping[str, ast.Module]) -> list[str]:
    """Classes whose __init__ takes more than MAX_PARAMETERS beside SETTINGS."""
    found = []
    for name, tree in trees.items():
        for owner in nodes(tree):
            if not isinstance(owner, ast.ClassDef):
                continue
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                    parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs][1:]
                    count = sum(each.arg not in SETTINGS for each in parameters)
                    if count > MAX_PARAMETERS:
                        found.append(f"{name}.{owner.name}: {count}")
    return found


def done_closures(trees: Mapping[str, ast.Module]) -> list[str]:
    """Nested functions that take only an `error`, the result of a commit."""
    found = []
    for name, tree in trees.items():
        for outer in nodes(tree):
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
                found += [
                    f"{name}.{outer.name}.{node.name}"
                    for node in ast.walk(outer)
                    if node is not outer
                    and isinstance(node, ast.FunctionDef)
                    and [each.arg for each in node.args.args] == ["error"]
                ]
    return sorted(set(found))


def getattrs(trees: Mapping[str, ast.Module]) -> list[str]:
    """getattr and hasattr with a constant name."""
    return [
        f"{name}:{node.lineno} {node.args[1].value}"
        for name, tree in trees.items()
        for node in nodes(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"getattr", "hasattr"}
        and isinstance(node.args[1], ast.Constant)
    ]


def spi_getattrs(trees: Mapping[str, ast.Module]) -> list[str]:
    """The getattrs() with the name of a member of an SPI."""
    members = {
        name
        for module in SPIS
        for owner in trees[module].body
        if isinstance(owner, ast.ClassDef) and not _holds_data(owner)
        for node in owner.body
        for name in _names_of(node)
    }
    return [found for found in getattrs(trees) if found.rpartition(" ")[2] in members]


def _holds_data(owner: ast.ClassDef) -> bool:
    """Whether a class is a NamedTuple, a dataclass or an exception."""
    kinds = " ".join(map(ast.unparse, (*owner.bases, *owner.decorator_list)))
    return any(kind in kinds for kind in ("NamedTuple", "dataclass", "Error", "Exception"))


def _names_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def calls_of(trees: Mapping[str, ast.Module], method: str) -> list[str]:
    return [
        f"{name}:{node.lineno}"
        for name, tree in trees.items()
        for node in nodes(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method
    ]


def wired(trees: Mapping[str, ast.Module]) -> list[str]:
    """Attributes of a part that the composition root sets after constructing it."""
    return [
        ast.unparse(target)
        for node in nodes(trees["kbroker.broker.broker"])
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Attribute)
    ]


def twins(trees: Mapping[str, ast.Module]) -> list[str]:
    """Public class names that two or more modules have."""
    owners: dict[str, list[str]] = defaultdict(list)
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners[node.name].append(name)
    return sorted(f"{name} in {', '.join(places)}" for name, places in owners.items() if len(places) > 1)


def small_modules(graph: Graph, root: Path = ROOT) -> list[str]:
    """Modules of at most SMALL_FILE_LINES with one importer, which is in the same folder, and stays
    within LONG_FILE_LINES with them. Modules of one folder are alike pure: the contract in
    pyproject.toml names folders."""
    files = {name: root / f"{name.replace('.', '/')}.py" for name in graph}
    lines = {name: len(path.read_text().splitlines()) for name, path in files.items() if path.exists()}
    importers: dict[str, list[str]] = defaultdict(list)
    for name, others in graph.items():
        for other in others:
            importers[other].append(name)
    return [
        f"{name} of {importer}"
        for name, size in lines.items()
        if size <= SMALL_FILE_LINES and len(importers[name]) == 1
        for importer in importers[name]
        if importer in lines
        and files[importer].parent == files[name].parent
        and lines[importer] + size <= LONG_FILE_LINES
    ]


def long_unpackings(trees: Mapping[str, ast.Module]) -> list[str]:
    """Functions that unpack MANY_NAMES or more by place. What is written as a tuple beside the
    names does not count."""
    found = (f"{name}.{place}" for name, tree in trees.items() for place in _unpacking(tree, ""))
    return list(dict.fromkeys(found))


def _unpacking(node: ast.AST, place: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _unpacking(child, f"{place}.{child.name}".lstrip("."))
            continue
        targets: list[ast.expr | None] = []
        if isinstance(child, ast.Assign) and not isinstance(child.value, ast.Tuple):
            targets = [*child.targets]
        elif isinstance(child, ast.For | ast.AsyncFor | ast.comprehension):
            targets = [child.target]
        elif isinstance(child, ast.withitem):
            targets = [child.optional_vars]
        if any(isinstance(each, ast.Tuple) and len(each.elts) >= MANY_NAMES for each in targets):
            yield place
        yield from _unpacking(child, place)


def statements(trees: Mapping[str, ast.Module]) -> int:
    return sum(isinstance(node, ast.stmt) for tree in trees.values() for node in nodes(tree))


def long_files(root: Path = ROOT, package: str = PACKAGE) -> list[str]:
    sizes = {path: len(path.read_text().splitlines()) for path in sorted((root / package).rglob("*.py"))}
    return [f"{path.relative_to(root)}: {lines}" for path, lines in sizes.items() if lines > LONG_FILE_LINES]


def general(root: Path, package: str) -> dict[str, list[str]]:
    """The findings of the figures that every package has, by title."""
    trees = modules(root, package)
    graph = imports(trees)
    return {
        "import circles": [" ".join(each) for each in circles(graph)],
        f"constructors of more than {MAX_PARAMETERS} parameters": long_constructors(trees),
        "public class names twice": twins(trees),
        "small modules with one importer": small_modules(graph, root),
        "bases of one class": lone_bases(trees),
        f"unpackings of {MANY_NAMES} names": long_unpackings(trees),
        f"files above {LONG_FILE_LINES} lines": long_files(root, package),
    }


def figures(root: Path = ROOT) -> dict[str, list[str]]:
    """The findings of each figure of kbroker/, by title."""
    trees = modules(root)
    graph = imports(trees)
    between = {
        f"arrows in {folder}/": [f"{one} -> {two}" for one, two in arrows(graph, f"{PACKAGE}.{folder}")]
        for folder in ("broker", "groups", "storage")
        if any(name.startswith(f"{PACKAGE}.{folder}.") for name in trees)
    }
    found = {
        **general(root, PACKAGE),
        "loose modules at the top": [
            name
            for name in trees
            if name.count(".") == 1
            and not name.endswith(".__main__")
            and (root / f"{name.replace('.', '/')}.py").exists()
        ],
        **between,
        "done-closures": done_closures(trees),
        "getattr on an SPI": spi_getattrs(trees),
        "work_in": calls_of(trees, "work_in"),
        "attributes of parts set after construction": wired(trees),
    }
    nodes.cache_clear()
    return found


def main(arguments: list[str]) -> None:
    root = Path.cwd() if "--here" in arguments else ROOT
    every = {PACKAGE: figures(root)} | {name: general(root / place, name) for name, place in OTHERS.items()}
    for package, found_of in every.items():
        print(package)
        for title, found in found_of.items():
            print(f"{len(found):6} {title}")
            if "--list" in arguments:
                for each in found:
                    print(f"           {each}")
    print(f"{statements(modules(root)):6} statements")


if __name__ == "__main__":
    main(sys.argv[1:])
