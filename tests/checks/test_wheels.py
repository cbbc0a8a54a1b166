"""Building the distributions: a wheel has the files of the checkout, the build leaves nothing
behind, and an old Python gets a message with the required version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {
    "kbroker": (".", "kbroker"),
    "kbroker_control_records": ("plugins/kbroker-control-records", "kbroker_control_records"),
    "kbroker_sqlite": ("plugins/kbroker-sqlite", "kbroker_sqlite"),
    "pyspark_kbroker": ("spark", "src"),
    "kbroker_client": ("clients/python", "src"),
}
"""By the prefix of their wheels: the folder, and its other contents beside the files for the
build."""


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_wheel_has_what_the_checkout_has_and_leaves_nothing_there(tmp_path: Path, name: str) -> None:
    folder, package = DISTRIBUTIONS[name]
    checkout = copy_for_the_build(folder, package, tmp_path / "checkout")
    first = build_wheel(checkout, tmp_path / "first")
    module = next(
        path for path in sorted((checkout / package).rglob("*.py")) if not path.name.startswith("__")
    )
    module.rename(module.with_name("renamed.py"))
    before = files_below(checkout)
    second = build_wheel(checkout, tmp_path / "second")
    assert files_below(checkout) == before
    old, new = (
        str(path.relative_to(checkout / ("src" if package == "src" else ".")))
        for path in (module, module.with_name("renamed.py"))
    )
    assert set(second.namelist()) - set(first.namelist()) == {new}
    assert set(first.namelist()) - set(second.namelist()) == {old}
    metadata = Parser().parsestr(
        first.read(next(each for each in first.namelist() if each.endswith("/METADATA"))).decode()
    )
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    description = metadata.get_payload()
    assert isinstance(description, str)
    assert description.startswith("# ")
    assert re.findall(r"\]\((?!https://)[^)]*\)", description) == [], (
        "links to files that a package does not have"
    )


def test_a_wheel_has_the_pages_and_shows_them(tmp_path: Path) -> None:
    """As pip installs it, without the checkout, in which kbroker/docs is a link."""
    checkout, wheels, installed = (tmp_path / name for name in ("checkout", "wheels", "installed"))
    shutil.copytree(
        ROOT / "kbroker",
        checkout / "kbroker",
        symlinks=True,
        ignore=shutil.ignore_patterns("__pycache__", "*.so"),
    )
    shutil.copytree(ROOT / "docs", checkout / "docs")
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, checkout)
    built = build_wheel_with_pip(checkout, wheels)
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    assert {name.removeprefix("kbroker/") for name in built.namelist() if name.endswith(".md")} == pages
    install = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "install",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*install, "--target", installed, next(wheels.iterdir())], check=True, timeout=300)
    code = (
        "import sys, kbroker; from kbroker.cli import run; print(kbroker.__file__, flush=True); "
        "sys.exit(run(sys.argv[1:]))"
    )
    for page in ("exit-codes", "decisions/0004-segment-log"):
        ran = subprocess.run(
            [sys.executable, "-P", "-c", code, "docs", page],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True,
            check=True, timeout=60,
        )  # fmt: skip
        assert ran.stdout == f"{installed}/kbroker/__init__.py\n" + (ROOT / "docs" / f"{page}.md").read_text()


AS_PYTHON_3_10 = """
import platform, runpy, sys
platform.python_version = lambda: "3.10.13"
sys.argv = ["setup.py", "--quiet", "dist_info", "--output-dir", sys.argv[1]]
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_for_an_old_python_nothing_is_required_but_another_one(tmp_path: Path, name: str) -> None:
    """If a requirement does not exist for the old Python, most versions of pip report that
    instead."""
    folder, package = DISTRIBUTIONS[name]
    checkout, target = copy_for_the_build(folder, package, tmp_path / "checkout"), tmp_path / "metadata"
    target.mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", AS_PYTHON_3_10, target], cwd=checkout, check=False, timeout=300
    )
    assert ended.returncode == 0
    (file,) = target.glob("*.dist-info/METADATA")
    metadata = Parser().parsestr(file.read_text())
    assert metadata.get_all("Requires-Dist", []) == []
    assert metadata["Requires-Python"] == PROJECT["requires-python"]


def test_for_an_old_python_a_wheel_requires_nothing_that_is_not_there() -> None:
    """Dependencies without a release for Python 3.10; a wheel's requirements are the same for every
    Python."""
    (kio,) = (each for each in map(Requirement, PROJECT["dependencies"]) if each.name == "kio")
    assert kio.marker is not None
    assert not kio.marker.evaluate({"python_version": "3.10"})
    assert kio.marker.evaluate({"python_version": "3.11"})


def copy_for_the_build(folder: str, package: str, checkout: Path) -> Path:
    shutil.copytree(
        ROOT / folder / package,
        checkout / package,
        ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so"),
    )
    for path in (ROOT / folder).iterdir():
        if path.is_file():
            shutil.copy(path, checkout)
    return checkout


BUILD = """
import sys
from setuptools import build_meta
metadata, target = sys.argv[1:]
build_meta.get_requires_for_build_wheel()
build_meta.prepare_metadata_for_build_wheel(metadata)
build_meta.build_wheel(target)
"""
"""What pip calls, in one process instead of four."""


def build_wheel(checkout: Path, target: Path) -> zipfile.ZipFile:
    metadata = target.with_name(f"{target.name}-metadata")
    metadata.mkdir()
    target.mkdir()
    command: list[str | Path] = [sys.executable, "-c", BUILD, metadata, target]
    ended = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return wheel_in(target)


def build_wheel_with_pip(checkout: Path, target: Path) -> zipfile.ZipFile:
    options = [
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--no-cache-dir",
        "--disable-pip-version-check",
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "-w", target, "."],
        cwd=checkout,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0
    return wheel_in(target)


def wheel_in(target: Path) -> zipfile.ZipFile:
    (wheel,) = target.iterdir()
    return zipfile.ZipFile(wheel)


def files_below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_distributions_are_built_alike() -> None:
    assert len({(ROOT / folder / "setup.py").read_text() for folder, _ in DISTRIBUTIONS.values()}) == 1
