"""The engine of an earlier commit beside the present one, in one process.

The sources of `kbroker` come from the history of the repository. They are imported under the name
`kbroker_old`: every import of a part of `kbroker` in them is rewritten. So the two trees share no
module and no class, only values of built-in types and those of other distributions.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

COMMIT = "0ba52c1f"
"""The last one before the second in-flight window."""
PACKAGE = "kbroker_old"
MENDED = (
    # The holder of a record whose save failed has answered, also if locks are prolonged only later.
    (
        "kbroker/share/in_flight.py",
        "if prolongs and lock.since_ms != ANSWERED:",
        "if lock.since_ms != ANSWERED:",
    ),
    # Since when a record is held is known exactly, whatever becomes of the lock duration.
    (
        "kbroker/share/share_writes.py",
        """        self._settings = settings
        self._advance()
""",
        """        before, self._settings = self._settings, settings
        for lock in self._window.locks.by_deadline:
            if lock.since_ms is None:
                lock.since_ms = lock.deadline_ms - before.lock_duration_ms
        self._advance()
""",
    ),
    # A write of a row ends after a later one, while the store is read: what it saved is replaced.
    (
        "kbroker/share/parked_saving.py",
        """        if parked.place in entry.places:
            i = entry.places.index(parked.place)
            self._removed(entry.places[:i], parked)
            del entry.places[:i]
""",
        """        if parked.place not in entry.places:
            return
        i = entry.places.index(parked.place)
        self._removed(entry.places[:i], parked)
        del entry.places[:i]
""",
    ),
    # The log's start has passed a record before the write that parks it ended: its key is free.
    (
        "kbroker/share/parked_saving.py",
        """            if parked.lane is Lane.SCHEDULE:
                order.forget(parked.offset)
            elif parked.lane is Lane.ARCHIVING:
                order.end(parked.offset)
""",
        """            if parked.lane is Lane.ARCHIVING or parked.offset < self.floor:
                order.end(parked.offset)
            elif parked.lane is Lane.SCHEDULE:
                order.forget(parked.offset)
""",
    ),
)
"""Path, text and its replacement: faults of the old engine that the shadow found."""
_ROOT = Path(__file__).parents[3]


class NoHistory(Exception):
    """The commit is not in this clone."""


@cache
def install() -> None:
    """Make `kbroker_old` importable. Raises NoHistory."""
    command = ["git", "-C", str(_ROOT), "archive", COMMIT, "kbroker"]
    try:
        archive = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoHistory(f"commit {COMMIT} is not in the history of this clone") from error
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        sources = {
            member.name: opened.read().decode()
            for member in files
            if member.name.endswith(".py") and (opened := files.extractfile(member)) is not None
        }
    for path, before, after in MENDED:
        if sources[path].count(before) != 1:
            raise ValueError(f"{path} has not one {before!r}")
        sources[path] = sources[path].replace(before, after)
    sources["kbroker/__init__.py"] = ""  # It prepares imports for the whole process.
    sys.meta_path.append(_OldTree(sources))


class _OldTree(MetaPathFinder, InspectLoader):
    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE or self._path(fullname) not in self._sources:
            return None
        return spec_from_loader(fullname, self, origin=f"{COMMIT}:{self._path(fullname)}")

    def is_package(self, fullname: str) -> bool:
        return f"kbroker{fullname.removeprefix(PACKAGE)}".replace(".", "/") + "/__init__.py" in self._sources

    def _path(self, fullname: str) -> str:
        path = f"kbroker{fullname.removeprefix(PACKAGE)}".replace(".", "/")
        return f"{path}/__init__.py" if self.is_package(fullname) else f"{path}.py"

    def get_source(self, fullname: str) -> str:
        return self._sources[self._path(fullname)]

    def get_code(self, fullname: str) -> CodeType:
        tree = _Renamed().visit(ast.parse(self.get_source(fullname)))
        return compile(tree, f"{COMMIT}:{self._path(fullname)}", "exec", dont_inherit=True)


class _Renamed(ast.NodeTransformer):
    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if not node.level and node.module is not None:
            node.module = _renamed(node.module)
        return node

    def visit_Import(self, node: ast.Import) -> ast.Import:
        for alias in node.names:
            if alias.name.partition(".")[0] == "kbroker":  # It would bind another name.
                raise NotImplementedError(f"import {alias.name}")
        return node


def _renamed(module: str) -> str:
    head, dot, rest = module.partition(".")
    return f"{PACKAGE}{dot}{rest}" if head == "kbroker" else module


# ---- values --------------------------------------------------------------------------------------

MOVED: Mapping[tuple[str, str], tuple[str, str]] = {}
"""Classes of values that have another module or name in the old tree."""


@cache
def _old_class(new: type) -> Any:
    module, name = MOVED.get((new.__module__, new.__qualname__), (new.__module__, new.__qualname__))
    return getattr(import_module(_renamed(module)), name)


def as_old(value: Any) -> Any:
    """The same value, of the classes of the old tree. Fields that it does not have are left out."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, Enum):
        return _old_class(kind)(value.value) if _is_ours(kind) else value
    if isinstance(value, tuple) and hasattr(kind, "_fields") and _is_ours(kind):
        old = _old_class(kind)
        return old(**{name: as_old(getattr(value, name)) for name in old._fields if hasattr(value, name)})
    if is_dataclass(value) and not isinstance(value, type) and _is_ours(kind):
        old = _old_class(kind)
        return old(**{name: as_old(getattr(value, name)) for name in _names(old) if hasattr(value, name)})
    if isinstance(value, dict):
        return {as_old(key): as_old(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return kind(map(as_old, value))
    return value


def fields_of(value: Any) -> dict[str, Any]:
    """Of a dataclass."""
    return {name: getattr(value, name) for name in _names(type(value))}


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))  # type: ignore[arg-type]


_PLAIN = frozenset({int, float, str, bytes, bool, type(None), range})


@cache
def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "kbroker"


def plain(value: Any) -> Any:
    """The value without its classes, to compare values of the two trees."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(each) for name, each in value._asdict().items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(each) for name, each in fields_of(value).items()}
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value))
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
