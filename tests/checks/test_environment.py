"""Creating the Makefile's environments: an unsuitable Python is refused in one line, and an
incomplete or broken environment is recreated."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "environment.py"
NOTHING_NEW = ("--quiet", "--no-index", "--disable-pip-version-check", "pip")
"""Arguments of pip with which it succeeds and downloads nothing."""
NOT_THERE = ("--quiet", "--no-index", "--disable-pip-version-check", "no-such-distribution")

PRETEND = """
import runpy, sys
sys.version_info = (3, 10, 13, "final", 0)
sys.argv = [{script!r}, *sys.argv[1:]]
runpy.run_path({script!r}, run_name="__main__")
"""
"""Runs the script as a Python 3.10 would, on machines without one."""


WITHOUT_VENV = """
import importlib.util, runpy, sys
there = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "ensurepip" else there(name)
sys.argv = [{script!r}, *sys.argv[1:]]
runpy.run_path({script!r}, run_name="__main__")
"""
"""Behaves as Debian does without python3-venv."""


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )


def make_environment(directory: Path, *pip_arguments: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, SCRIPT, directory, "nothing", *pip_arguments)


def old_pythons() -> list[str]:
    found = [shutil.which(f"python3.{minor}") for minor in range(6, 11)]
    return [path for path in found if path and run(path, "-c", "").returncode == 0]


PRETENDED = [sys.executable, "-c", PRETEND.format(script=str(SCRIPT))]


@pytest.mark.parametrize("command", [PRETENDED, *([path, SCRIPT] for path in old_pythons())])
def test_a_python_that_is_too_old_is_refused_before_anything_is_made(
    tmp_path: Path, command: list[str | Path]
) -> None:
    ended = run(*command, tmp_path / "venv", "nothing", *NOTHING_NEW)
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("kbroker needs Python 3.11 or later, and ")
    assert "; name another one, as in: make demo PYTHON=python3." in line
    assert list(tmp_path.iterdir()) == []


def test_a_python_without_venv_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    ended = run(
        sys.executable,
        "-c",
        WITHOUT_VENV.format(script=str(SCRIPT)),
        tmp_path / "venv",
        "nothing",
        *NOTHING_NEW,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.endswith(f": apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv\n")
    assert list(tmp_path.iterdir()) == []


def test_what_is_half_made_or_broken_is_made_anew(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    failed = make_environment(venv, *NOT_THERE)
    assert failed.returncode == 1
    assert "no-such-distribution" in failed.stderr
    assert failed.stderr.endswith("is not complete, as pip failed; the next make tries again\n")
    assert not (venv / ".ready").exists()

    left = venv / "left-by-the-first-try"
    left.touch()
    made = make_environment(venv, *NOTHING_NEW)
    assert (made.returncode, made.stderr) == (0, "")
    first, last = made.stdout.splitlines()
    assert first.startswith(
        f"{venv}: making it again, as it was incomplete or did not run; Python {sys.version.split()[0]}; "
        "downloading"
    )
    assert last.startswith(f"{venv}: ready after ")
    assert (venv / ".ready").exists()
    assert not left.exists()

    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "kbroker.pth").write_text(f"{ROOT}\n")  # installed from this checkout: now it is usable
    left.touch()
    assert "up to date" in make_environment(venv, *NOTHING_NEW).stdout
    assert left.exists(), "what can be used is kept"

    python = venv / "bin" / "python"
    python.unlink()
    python.symlink_to(tmp_path / "python-that-was-removed")
    assert make_environment(venv, *NOTHING_NEW).returncode == 0
    assert not left.exists()
    assert run(python, "-c", "").returncode == 0


@pytest.mark.parametrize("environment", [".venv", ".venv-run", ".venv-spark"])
def test_make_notices_an_environment_that_does_not_run(tmp_path: Path, environment: str) -> None:
    """A stamp newer than everything it depends on is not enough."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("spark", "clients/python", "plugins/kbroker-control-records"):
        (tmp_path / folder).mkdir(parents=True)
        shutil.copy(ROOT / folder / "pyproject.toml", tmp_path / folder)
    python = tmp_path / environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 0\n")  # stands in for a working one
    python.chmod(0o755)
    (tmp_path / environment / ".ready").touch()
    question = ("make", "-C", tmp_path, "--no-print-directory", "-n", f"{environment}/.ready")
    assert "up to date" in run(*question).stdout
    python.write_text("#!/bin/sh\nexit 1\n")
    assert f"environment.py {environment} " in run(*question).stdout
