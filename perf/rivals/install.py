"""Debian's packages of the rivals' servers, for root: `python -m perf.rivals.install`, the first
step of `make perf-rivals`.

Packages start services of their own, which would take part in the measurement: those of packages
that are installed here are stopped and disabled. A server that was there before is left as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from perf.rivals.rival import find_program
from perf.rivals.sides import RIVALS

SERVICES: Mapping[str, Sequence[str]] = {"rabbitmq-server": ("rabbitmq-server", "epmd.socket", "epmd")}
"""Of a package, unless it is one of the package's name."""


def main() -> int:
    """Exit code 0 where nothing is missing, or nothing can be done about it: the comparison then
    says what is not installed."""
    missing = sorted({rival.package for rival in RIVALS if find_program(rival.package) is None})
    if not missing:
        return 0
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"not installed, and not measured: {', '.join(missing)} (as root: {' '.join(command)})")
        return 0
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "--quiet"], env=environment, check=True)
    subprocess.run(command, env=environment, check=True)
    for package in missing:
        for service in SERVICES.get(package, (package,)):
            _stop(service)
    return 0


def _stop(service: str) -> None:
    """Now and for good. A step that fails says so on stderr; that a service is not there, for
    instance, is no matter."""
    runs_systemd = Path("/run/systemd/system").is_dir()
    stop = ["systemctl", "stop", service] if runs_systemd else ["service", service, "stop"]
    for step in (["systemctl", "disable", service], stop):
        if shutil.which(step[0]) is not None:
            subprocess.run(step, stdout=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    sys.exit(main())
