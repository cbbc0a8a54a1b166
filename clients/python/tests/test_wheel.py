"""The wheel of the client in an environment of its own, as on a worker's host: what it brings
along, and a worker there for a broker that runs in another environment.

In the short form the environment gets copies of the installed dependencies, so no package index is
needed. In the long form pip installs them."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from clients.python.tests.worker.test_workers_page import ADDRESS, EXAMPLES
from kbroker.testing.broker import open_test_broker
from tests.cli.snippets import run_lines

ROOT = Path(__file__).parents[3]
CLIENT = ROOT / "clients" / "python"
MOST_BYTES = 40_000_000
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
HEAVY = ("click", "confluent_kafka", "kbroker", "lmdb", "numpy", "rocksdict", "trio", "zstandard")
LOADED = f"""
import sys, kbroker_client, kbroker_client.worker
print(kbroker_client.__file__)
print([each for each in {HEAVY} if each in sys.modules])
"""
INSTALLED = """
from importlib.metadata import distributions
print(*(each.name for each in distributions()))
"""


class Host(NamedTuple):
    """Where the wheel is installed. `needed`: the names of the distributions that it requires."""

    folder: Path
    needed: frozenset[str]

    @property
    def packages(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def python(self, code: str) -> list[str]:
        """The lines that it prints."""
        ran = subprocess.run(
            [self.folder / "bin" / "python", "-c", code], cwd=self.folder, env=self.environment(),
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        return ran.stdout.splitlines()

    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in the checkout, where the shared modules are links."""
    target = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--no-cache-dir", "-w", target]
    subprocess.run([*PIP, "wheel", *options, CLIENT], check=True, timeout=300)
    (built,) = target.glob("kbroker_client-*.whl")
    return built


@pytest.fixture(scope="module", params=["copies", pytest.param("pip", marks=pytest.mark.full)])
def host(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Host:
    folder = tmp_path_factory.mktemp("host")
    venv.create(folder, with_pip=False, symlinks=True)
    needed = frozenset(required_by("kbroker-client", read_requirements(wheel)))
    made = Host(folder, needed)
    how = ["-c", ROOT / "constraints.txt"]
    if request.param == "copies":
        how = ["--no-deps", "--no-index"]
        for name in needed:
            copy_distribution(name, made.packages)
    subprocess.run(
        [*PIP, "--python", folder / "bin" / "python", "install", *how, wheel], check=True, timeout=300
    )
    return made


def read_requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().partition("\n\n")[0].splitlines()
    return [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]


def required_by(name: str, requirements: list[str], seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Without extras; the names as they are normalized."""
    for each in map(Requirement, requirements):
        needed = canonicalize_name(each.name)
        if needed in seen or (each.marker is not None and not each.marker.evaluate({"extra": ""})):
            continue
        yield needed
        yield from required_by(needed, distribution(needed).requires or [], seen | {canonicalize_name(name)})


def copy_distribution(name: str, target: Path) -> None:
    for file in distribution(name).files or ():
        if ".." not in file.parts:  # A script.
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target / file)


def test_the_wheel_has_the_modules_and_no_links(wheel: Path) -> None:
    source = CLIENT / "src"
    expected = {str(path.relative_to(source)): path for path in source.rglob("*.py")}
    expected["kbroker_client/py.typed"] = source / "kbroker_client" / "py.typed"
    with zipfile.ZipFile(wheel) as archive:
        entries = [each for each in archive.infolist() if ".dist-info/" not in each.filename]
        assert {each.filename for each in entries} == expected.keys()
        for each in entries:
            assert not stat.S_ISLNK(each.external_attr >> 16), each.filename
            assert archive.read(each) == expected[each.filename].read_bytes(), each.filename


def test_it_brings_no_broker_along(host: Host) -> None:
    (names,) = host.python(INSTALLED)
    assert {canonicalize_name(each) for each in names.split()} == {*host.needed, "kbroker-client"}
    assert host.needed.isdisjoint(map(canonicalize_name, HEAVY))
    module, heavy = host.python(LOADED)
    assert Path(module).is_relative_to(host.packages)
    assert heavy == "[]"
    size = sum(path.stat().st_size for path in host.packages.rglob("*") if path.is_file())
    print(f"installed: {size / 1e6:.1f} MB")
    assert size <= MOST_BYTES


def test_the_ten_lines_of_the_page_are_a_worker(host: Host, tmp_path: Path) -> None:
    """Its broker and the command that makes the queue run in the environment of the tests."""
    with open_test_broker(storage="memory", durability="os") as broker:
        for name in ("emails", "send"):
            (tmp_path / f"{name}.py").write_text(EXAMPLES[name].replace(ADDRESS, broker.bootstrap))
        run_lines(["kbroker queues create emails --prefetch 8"], broker.bootstrap)
        with subprocess.Popen(
            [host.folder / "bin" / "kbroker-worker", "run", "emails:app"], cwd=tmp_path,
            env=host.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as worker:  # fmt: skip
            try:
                assert worker.stdout is not None
                assert worker.stderr is not None
                assert "worker ready, queues: emails" in worker.stderr.readline()
                subprocess.run(
                    [host.folder / "bin" / "python", "send.py"], cwd=tmp_path, env=host.environment(),
                    check=True, timeout=60,
                )  # fmt: skip
                assert worker.stdout.readline() == "sent to ann@example.com\n"
                worker.terminate()
                assert worker.wait(30) == 0
            finally:
                worker.kill()
