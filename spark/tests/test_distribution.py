"""The wheel: Spark finds every format by itself, importing the packages that it inspects is cheap,
and reading files needs no part of a broker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_spark.session import SOURCE_PACKAGES, register
from spark.tests.filling import numbered, produce

SPARK = Path(__file__).parents[1]
FORMATS = ["kbroker", "kbroker-batches", "kbroker-groups", "kbroker-state", "kbroker-topics"]
LOOK_AT_PACKAGES = """
import json, pkgutil, sys
import pyspark.sql.datasource
before = set(sys.modules)
found = sorted(info.name for info in pkgutil.iter_modules() if info.name.startswith("pyspark_kbroker"))
names = sorted(__import__(package).DefaultSource.name() for package in found)
print(json.dumps({"names": names, "modules": sorted(set(sys.modules) - before)}))
"""
IMPORT_ALL = """
import json, pkgutil, sys
import kbroker_spark
modules = [info.name for info in pkgutil.iter_modules(kbroker_spark.__path__)]
for module in modules:
    __import__(f"kbroker_spark.{module}")
print(json.dumps({"imported": modules, "all": sorted(sys.modules)}))
"""
READ_ALL = """
import json, sys
from kbroker_spark.session import session
spark = session("installed", **{"spark.master": "local[1]", "spark.sql.shuffle.partitions": 1})
data_dir = sys.argv[1]
counts = {"kbroker": spark.read.format("kbroker").option("subscribe", "orders").load(data_dir).count()}
for name in sys.argv[2:]:
    counts[name] = spark.read.format(name).load(data_dir).count()
import kbroker_spark
print(json.dumps({"counts": counts, "file": kbroker_spark.__file__}))
spark.stop()
"""


def said_by(python: str | Path, code: str, *arguments: str, cwd: Path) -> Any:
    """The JSON output of a separate program, with the environment's installed packages and no
    PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [python, "-c", code, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_spark_finds_packages_that_import_next_to_nothing(tmp_path: Path) -> None:
    """An error in one of them would hide the sources of all, and each is imported in every
    session's first query of any Python source."""
    found = said_by(sys.executable, LOOK_AT_PACKAGES, cwd=tmp_path)
    assert found["names"] == FORMATS
    heavy = {"numpy", "pandas", "pyarrow", "lmdb", "rocksdict", "kio", "kbroker"}
    assert heavy.intersection(name.partition(".")[0] for name in found["modules"]) == set()


def test_the_list_of_packages_is_complete() -> None:
    """The list that register() uses."""
    assert sorted(import_module(package).DefaultSource.name() for package in SOURCE_PACKAGES) == FORMATS


def test_reading_files_needs_no_part_of_a_broker(tmp_path: Path) -> None:
    """Nor do its own imports. (trio itself may be loaded: by hypothesis, which kio imports if
    present.)"""
    found = said_by(sys.executable, IMPORT_ALL, cwd=tmp_path)
    assert {"batch_reader", "stream_reader", "decode", "state_table"} <= set(found["imported"])
    running = ("admin_http", "api", "broker", "cli", "client", "clock", "metrics_export", "server", "testing")
    assert {name.split(".")[1] for name in found["all"] if name.startswith("kbroker.")}.intersection(
        running
    ) == set()


def test_register_makes_all_formats_known(spark: SparkSession, broker: RunningBroker) -> None:
    """Even if Spark has found them already."""
    register(spark)
    broker.create_topic("registered", partitions=3)
    assert (
        spark.read.format("kbroker").option("subscribe", "registered").load(str(broker.data_dir)).count() == 0
    )
    topics = spark.read.format("kbroker-topics").load(str(broker.data_dir))
    assert topics.where("topic = 'registered'").count() > 0


def copied(project: Path, place: Path, package: str) -> Path:
    """The files of a wheel, in a copy: building it must leave nothing among the sources."""
    shutil.copytree(
        project / package, place / package, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
    )
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(project / name, place)
    shutil.copy(SPARK.parent / "LICENSE", place)
    return place


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the two wheels, not linked to the sources, plus the
    packages of this environment."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    python = folder / "env" / "bin" / "python"
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-deps"]
    projects = [copied(SPARK.parent, folder / "kbroker", "kbroker"), copied(SPARK, folder / "spark", "src")]
    subprocess.run([python, "-m", "pip", "wheel", *quiet, "-w", folder, *projects], check=True)
    subprocess.run([python, "-m", "pip", "install", *quiet, *folder.glob("*.whl")], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    others = next(path for path in sys.path if path.endswith(f"{version}/site-packages"))
    # After its own packages. Links of editable installations are in files that are followed only in
    # an environment's own directory.
    (folder / "env" / "lib" / version / "site-packages" / "others.pth").write_text(f"{others}\n")
    return python


@pytest.mark.full
def test_a_wheel_is_all_that_it_takes(installed: Path, tmp_path: Path) -> None:
    """Every format, without register(), on a stopped broker's directory."""
    with open_test_broker(data_dir=tmp_path / "data") as broker:
        broker.create_topic("orders", partitions=2)
        produce(broker.bootstrap, "orders", numbered(500, partitions=2), codec="zstd")
    found = said_by(installed, READ_ALL, str(tmp_path / "data"), *FORMATS[1:], cwd=tmp_path)
    assert Path(found["file"]).is_relative_to(installed.parents[1])
    assert found["counts"].pop("kbroker") == 500
    assert found["counts"]["kbroker-topics"] > 0
    assert found["counts"]["kbroker-batches"] > 0
    assert sorted(found["counts"]) == FORMATS[1:]
