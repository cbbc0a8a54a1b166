"""pyproject.toml and constraints.txt agree: every range has a pin within it, and every entry point
names something that exists."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kbroker
from tests.checks.installed_size import closure, size_bytes

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SPARK = tomllib.loads((ROOT / "spark" / "pyproject.toml").read_text())["project"]
CLIENT = tomllib.loads((ROOT / "clients" / "python" / "pyproject.toml").read_text())["project"]
PLUGINS = [
    tomllib.loads(path.read_text())["project"] for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))
]
DISTRIBUTIONS = (PROJECT, SPARK, CLIENT, *PLUGINS)
OWN = {each["name"] for each in DISTRIBUTIONS}
"""Distributions of this checkout, which no line of constraints.txt is for."""
PINS = {
    canonicalize_name(name): version
    for name, version in re.findall(
        r"^([A-Za-z0-9._-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE
    )
}
ENTRY_POINTS = [
    (group, name, target)
    for group, entries in PROJECT.get("entry-points", {}).items()
    for name, target in entries.items()
] + [("console", name, target) for name, target in PROJECT["scripts"].items()]


RANGES = [
    (project, extra) for project in DISTRIBUTIONS for extra in ("", *project.get("optional-dependencies", {}))
]


@pytest.mark.parametrize(
    ("project", "extra"), RANGES, ids=[f"{project['name']}[{extra}]" for project, extra in RANGES]
)
def test_every_range_has_a_pin_within_it(project: Mapping[str, Any], extra: str) -> None:
    requirements = map(
        Requirement, project["optional-dependencies"][extra] if extra else project["dependencies"]
    )
    wrong = {
        str(each): PINS.get(canonicalize_name(each.name))
        for each in requirements
        if each.name not in OWN
        and not each.specifier.contains(PINS.get(canonicalize_name(each.name), "0.dev0"))
    }
    assert wrong == {}


def test_constraints_are_pins_and_nothing_else() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


@pytest.mark.parametrize(("group", "name", "target"), ENTRY_POINTS)
def test_entry_points_name_something(group: str, name: str, target: str) -> None:
    module, _, attribute = target.partition(":")
    found = import_module(module)
    assert not attribute or hasattr(found, attribute)


def test_one_version() -> None:
    """The parts share formats and SPIs that may change with each version. The client names its
    version to brokers."""
    assert len(PLUGINS) >= 2
    assert {each["version"] for each in DISTRIBUTIONS} == {kbroker.__version__}
    connection = ROOT / "clients" / "python" / "src" / "kbroker_client" / "connection.py"
    assert f'client_software_version="{kbroker.__version__}"' in connection.read_text()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+)", changes, re.MULTILINE)[0] == kbroker.__version__.partition(".dev")[0]


def test_distributions_require_the_same_version_of_each_other() -> None:
    """kbroker[test] in an extra of a plugin stands beside the plugin's own requirement."""
    found = {}
    for project in DISTRIBUTIONS:
        extras = project.get("optional-dependencies", {}).items()
        for extra, texts in (("", project["dependencies"]), *extras):
            for each in map(Requirement, texts):
                if each.name in OWN and not (extra and not each.specifier):
                    found[project["name"], extra, each.name] = str(each.specifier)
    assert set(found.values()) == {f"=={kbroker.__version__}"}
    assert sorted(found) == sorted(
        [
            (PROJECT["name"], "worker", CLIENT["name"]),
            *((each["name"], "", PROJECT["name"]) for each in (SPARK, *PLUGINS)),
        ]
    )


def test_the_installed_size_counts_what_the_default_install_needs() -> None:
    found = dict(closure("kbroker", ()))
    own = {canonicalize_name(Requirement(each).name) for each in PROJECT["dependencies"]}
    assert own <= set(found)
    assert {"mmap-ninja"} <= found["numpy"]
    assert "kbroker-client" not in found
    assert size_bytes(distribution("numpy")) > 1 << 20
