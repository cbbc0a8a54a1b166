"""Plugins: engines, persisters and assignors by name, from entry points. The built-in ones are
loaded in the same way.

    group                  an entry point names
    kbroker.log_store      a kbroker.storage.spi.LogStoreFactory
    kbroker.state_store    a kbroker.storage.spi.StateStoreFactory
    kbroker.persister      a function that creates a kbroker.share.persister.Persister
    kbroker.assignor       a kbroker.groups.assignors.spi.ConsumerAssignor
    kbroker.authorizer     a function that creates a kbroker.security.spi.Authorizer

A plugin is imported only when it is chosen, so that a broken or heavy one affects no one else.
importlib.metadata, which imports email and zipfile, is imported only where the files of the
installed packages do not name one object: a start saves a tenth of its time.

This module is below the SPIs that plugins implement, hence the `Any`: callers state the type that
they expect. It must not know what a plugin does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from kbroker.errors import OperatorError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

T = TypeVar("T")

LOG_STORE = "kbroker.log_store"
STATE_STORE = "kbroker.state_store"
PERSISTER = "kbroker.persister"
ASSIGNOR = "kbroker.assignor"
AUTHORIZER = "kbroker.authorizer"

_NOUNS = {
    LOG_STORE: "storage engine",
    STATE_STORE: "state storage engine",
    PERSISTER: "persister",
    ASSIGNOR: "assignor",
    AUTHORIZER: "authorizer",
}
_PLUGINS = {
    (LOG_STORE, "sqlite"): "kbroker-sqlite",
    (STATE_STORE, "sqlite"): "kbroker-sqlite",
    (PERSISTER, "control-records"): "kbroker-control-records",
}
"""Names in distributions of kbroker's own that are installed separately, from plugins/."""
_NO_FLAGS: Mapping[str, str] = {}
_KAFKA_ASSIGNORS = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""Kafka's name of the authorizer that is built in (kbroker/security/authorizer.py)."""


def log_store_factory(name: str) -> Any:  # noqa: ANN401
    """The LogStoreFactory of the engine `name`. OperatorError if there is none or it cannot be
    imported."""
    return load(LOG_STORE, name)


def state_store_factory(name: str) -> Any:  # noqa: ANN401
    """The StateStoreFactory of the engine `name`. OperatorError as above."""
    return load(STATE_STORE, name)


def persister_factory(name: str) -> Any:  # noqa: ANN401
    """The function that makes the persister `name`. OperatorError as above."""
    return load(PERSISTER, name)


def authorizer_factory(name: str) -> Any:  # noqa: ANN401
    """The function that makes the authorizer `name`. None for the built-in one, and for "", which
    is no authorizer. OperatorError as above."""
    return None if name in ("", STANDARD_AUTHORIZER) else load(AUTHORIZER, name)


def consumer_assignors(listed: Iterable[str]) -> Mapping[str, Any]:
    """The ConsumerAssignors of group.consumer.assignors by name, in its order; Kafka's class names
    stand for the built-in ones.

    OperatorError as above, and for a list that is empty or names one twice.
    """
    found: dict[str, Any] = {}
    for text in listed:
        name = _KAFKA_ASSIGNORS.get(text, text)
        if name in found:
            raise OperatorError(f"group.consumer.assignors names {name!r} twice")
        found[name] = load(ASSIGNOR, name)
    if not found:
        raise OperatorError("group.consumer.assignors is empty: name at least one")
    return found


def names(group: str) -> Sequence[str]:
    """The names installed in the group, sorted; nothing is imported."""
    return sorted({found.name for found in _installed(tuple(sys.path), group)})


def how_to_install(group: str, name: str) -> str | None:
    """What a person has to do before `name` can be loaded. None if it is installed, or if kbroker
    does not know which distribution has it."""
    plugin = _PLUGINS.get((group, name))
    if plugin is None or name in names(group):
        return None
    return f"install the plugin {plugin} (in a checkout of kbroker: pip install ./plugins/{plugin})"


def load(group: str, name: str) -> Any:  # noqa: ANN401
    """Import the object of the entry point `name` of `group`. OperatorError if it is not installed,
    which names the distribution of kbroker's own that has it, or if it cannot be imported."""
    targets = _targets(tuple(sys.path)).get((group, name), set())
    target = next(iter(targets)) if len(targets) == 1 else _checked_target(group, name)
    try:
        return resolve_name(target)
    except Exception as error:  # A plugin's module may raise anything when it is imported.
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise OperatorError(
            f"{_NOUNS.get(group, group)} {name!r} of {_distributions(group, name)[0]} cannot be loaded "
            f"({text}): repair or uninstall it"
        ) from error


def _checked_target(group: str, name: str) -> str:
    """The object that the only entry point `name` names. OperatorError if none or several do."""
    noun = _NOUNS.get(group, group)
    if advice := how_to_install(group, name):
        raise OperatorError(f"{noun} {name!r} is not installed: {advice}")
    found = [each for each in _installed(tuple(sys.path), group) if each.name == name]
    if not found:
        raise OperatorError(f"unknown {noun} {name!r}: installed are {', '.join(names(group)) or 'none'}")
    if len({each.value for each in found}) > 1:
        raise OperatorError(
            f"{noun} {name!r} is offered by {' and by '.join(_distributions(group, name))}: "
            "uninstall all but one"
        )
    return f"{found[0].module}:{found[0].attr}"


@lru_cache(maxsize=1)
def _targets(path: tuple[str, ...]) -> Mapping[tuple[str, str], set[str]]:
    """By group and name, what the entry points in directories of the import path name. Those in zip
    files, and those with extras, are left to importlib.metadata."""
    found: dict[tuple[str, str], set[str]] = {}
    for directory in path:
        try:
            packages = os.listdir(directory or ".")
        except OSError:
            continue
        for package in packages:
            if package.endswith((".dist-info", ".egg-info")):
                for group, name, target in _written(os.path.join(directory, package, "entry_points.txt")):
                    found.setdefault((group, name), set()).add(target)
    return found


def _written(file: str) -> Iterable[tuple[str, str, str]]:
    """Group, name and target of each of kbroker's entry points in the file, if there is one."""
    try:
        with open(file, encoding="utf-8") as opened:
            lines = opened.readlines()
    except (OSError, ValueError):
        return
    group = ""
    for line in map(str.strip, lines):
        name, equals, target = line.partition("=")
        if line.startswith("["):
            group = line.strip("[]")
        elif equals and group in _NOUNS and "[" not in target:
            yield group, name.strip(), target.strip()


@lru_cache(maxsize=len(_NOUNS))
def _installed(_path: tuple[str, ...], group: str) -> EntryPoints:
    """The entry points of the group on the import path. They are remembered, since a look-up reads
    the metadata of every installed package."""
    from importlib.metadata import entry_points

    return entry_points(group=group)


def _distributions(group: str, name: str) -> Sequence[str]:
    """Those that offer the name, sorted."""
    offered = {_distribution(each) for each in _installed(tuple(sys.path), group) if each.name == name}
    return sorted(offered)


def _distribution(entry_point: EntryPoint) -> str:
    return (
        f"{entry_point.dist.name} {entry_point.dist.version}"
        if entry_point.dist
        else "an unknown distribution"
    )


def opening(make: Callable[..., Any], adapt: Callable[[Any], T]) -> Callable[..., T]:
    """`make`, with its result adapted. OperatorError for a class that lacks an abstract method."""

    def made(*arguments: Any) -> T:  # noqa: ANN401
        try:
            found = make(*arguments)
        except TypeError as error:
            if "abstract" not in str(error):
                raise
            raise OperatorError(f"a plugin is incomplete: {error}") from error
        return adapt(found)

    return made


def adapted(spi: Any, plugin: Any, flags: Mapping[str, str] = _NO_FLAGS, **others: Any) -> Any:  # noqa: ANN401
    """`plugin`, or an adapter for it if its class does not derive from `spi`.

    - What the plugin lacks has the default of `spi`.
    - `flags`: attributes that are true if the plugin has the method beside each.
    - `others`: attributes of the adapter in place of the plugin's.

    OperatorError, with the name of the method, where the plugin lacks one that has no default.
    """
    if isinstance(plugin, spi):
        return plugin
    kind = type(plugin)
    names = [name for name in dir(spi) if not name.startswith("_")]
    for name in names:
        if getattr(getattr(spi, name), "__isabstractmethod__", False) and not hasattr(plugin, name):
            raise OperatorError(
                f"{kind.__module__}.{kind.__qualname__} has no {name}(), which a {spi.__name__} must have "
                f"({spi.__module__})"
            )
    own = {name: getattr(plugin, name) for name in names if hasattr(plugin, name)} | others
    own |= {flag: hasattr(plugin, method) for flag, method in flags.items()}
    methods = {name: staticmethod(each) if callable(each) else each for name, each in own.items()}
    rest = {"__getattr__": lambda _, name: getattr(plugin, name)}
    return type(kind.__name__, (spi,), methods | rest)()
