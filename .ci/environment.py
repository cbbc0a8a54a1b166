"""Makes a virtual environment of the Makefile: `PYTHON .ci/environment.py DIRECTORY WHAT
PIP-ARGUMENT...`

The Python that runs it is the one that the environment gets. It may be too old: then this file
still has to run (3.6 or later) and says in one line what is needed. The stamp .ready is written
last. An environment without it is half made, because pip failed or was interrupted. Such a one is
removed and recreated, and so is one whose Python no longer runs.

`DIRECTORY/bin/python -I .ci/environment.py` without arguments ends with 0 where that environment
can be used.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def python_needed() -> "tuple[int, int]":
    """From pyproject.toml. A Python as old as this file allows has no parser for it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^requires-python = ">=(\d+)\.(\d+)"$', text, re.MULTILINE)
    assert found, "pyproject.toml names no Python in the form requires-python = '>=X.Y'"
    return int(found.group(1)), int(found.group(2))


def refuse_unsuitable_python() -> None:
    """One line and exit code 1 where this Python cannot make the environment."""
    major, minor = python_needed()
    if sys.version_info < (major, minor):
        this = "{} is {}.{}.{}".format(sys.executable, *sys.version_info[:3])
        other = newer_python(major, minor) or f"python{major}.{minor}"
        sys.exit(
            f"kbroker needs Python {major}.{minor} or later, and {this}; name another one, as in: make "
            f"demo PYTHON={other}"
        )
    if importlib.util.find_spec("ensurepip") is None:
        package = "python{}.{}-venv".format(*sys.version_info[:2])
        sys.exit(
            f"{sys.executable} cannot make virtual environments; on Debian and Ubuntu: apt install {package}"
        )


def newer_python(major: int, minor: int) -> "str | None":
    """The name of one on the PATH that runs."""
    names = [f"python{major}.{number}" for number in range(minor, minor + 10)]
    return next((name for name in reversed(names) if shutil.which(name) and runs(name, "-c", "")), None)


def runs(*command: str) -> bool:
    try:
        return (
            subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
            ).returncode
            == 0
        )
    except OSError:
        return False


def is_usable() -> bool:
    """Of this environment: Python is new enough, and kbroker is this checkout's (it may have been
    moved)."""
    if sys.version_info < python_needed():
        return False
    kbroker = importlib.util.find_spec("kbroker")
    return (
        kbroker is not None
        and kbroker.origin is not None
        and Path(kbroker.origin).resolve().parent == ROOT / "kbroker"
    )


def make(directory: Path, what: str, pip_arguments: "list[str]") -> int:
    python, ready, started_s = directory / "bin" / "python", directory / ".ready", time.monotonic()
    if ready.exists() and runs(str(python), "-I", __file__):
        print(f"{directory}: bringing {what} up to date", flush=True)
    else:
        refuse_unsuitable_python()
        again = " again, as it was incomplete or did not run" if directory.exists() else ""
        version = "{}.{}.{}".format(*sys.version_info[:3])
        print(
            f"{directory}: making it{again}; Python {version}; downloading and installing {what}", flush=True
        )
        if directory.exists():
            shutil.rmtree(directory)
        made = subprocess.run([sys.executable, "-m", "venv", str(directory)], check=False)
        if made.returncode != 0:
            return made.returncode
    installed = subprocess.run([str(python), "-m", "pip", "install", *pip_arguments], check=False)
    if installed.returncode != 0:
        print(f"{directory} is not complete, as pip failed; the next make tries again", file=sys.stderr)
        return installed.returncode
    ready.touch()
    print(f"{directory}: ready after {time.monotonic() - started_s:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(0 if is_usable() else 1)
    try:
        sys.exit(make(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
    except KeyboardInterrupt:
        sys.exit(130)
