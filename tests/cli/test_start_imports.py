"""What a plain `kbroker start` imports until it is ready. Imports are most of the processor time
and of the memory of a start; counts do not depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

STARTED = """
import json, os, sys
site = set(sys.modules)
from kbroker.cli import run, start

def stop(line, tell_ready):
    own = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "kbroker"}
    others = {name.partition(".")[0] for name in set(sys.modules) - site - set(own)}
    created = {
        f"{name}.{each.__name__}" for name, module in own.items() for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == name and "__dataclass_fields__" in vars(each)
    }
    found = {
        "modules": len(own), "dataclasses": len(created), "all": sorted(set(sys.modules) - site),
        "packages": sorted(others - set(sys.stdlib_module_names)),
    }
    print(json.dumps(found), flush=True)
    os._exit(0)

start._announce = stop
run(["start", "--data-dir", sys.argv[1], "--listen", "127.0.0.1:0"])
"""
MOST_MODULES = 340
"""Of kbroker."""
MOST_DATACLASSES = 105
"""Each takes 0.5 to 1 ms, a named tuple a fifth of that."""
PACKAGES = {
    "attr", "attrs", "click", "cramjam", "idna", "kio", "outcome", "sniffio", "sortedcontainers",
    "trio", "typing_extensions", "zstandard",
}  # fmt: skip
UNUSED = {
    "argparse", "asyncio", "concurrent.futures", "csv", "decimal", "difflib", "email", "http.client",
    "importlib.metadata", "numpy", "rich", "xml", "zipfile",
}  # fmt: skip
"""Once imported for a name or two."""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    command = [sys.executable, "-c", STARTED, str(tmp_path_factory.mktemp("start") / "data")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, object] = json.loads(ended.stdout)
    return found


def test_few_modules_and_dataclasses(imported: dict[str, int]) -> None:
    assert imported["modules"] <= MOST_MODULES
    assert imported["dataclasses"] <= MOST_DATACLASSES


def test_few_packages_of_others(imported: dict[str, list[str]]) -> None:
    assert set(imported["packages"]) <= PACKAGES


def test_nothing_that_a_start_does_not_use(imported: dict[str, list[str]]) -> None:
    assert set(imported["all"]) & UNUSED == set()


def test_asyncio_can_be_imported_afterwards() -> None:
    """kbroker.formats imports kio.serial with a stand-in for it."""
    program = "import kbroker.formats.batches; import asyncio; asyncio.run(asyncio.sleep(0)); print('ran')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("ran\n", "")
