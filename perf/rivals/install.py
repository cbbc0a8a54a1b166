"""Installs the Debian packages of the rivals' servers, if root runs it: `python -m
perf.rivals.install`, the first step of `make perf-rivals`.

Packages start their own services, which would disturb the measurement. The services of packages
installed here are stopped and disabled. A server that was installed before is not changed.
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
"""The services of a package, unless it has one service with the package's name."""


def main() -> int:
    """Returns exit code 0 also if servers are missing and cannot be installed. The comparison then
    names them."""
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
    """Stops and disables a service. A failing step prints to stderr and is ignored, since the
    service may not exist."""
    runs_systemd = Path("/run/systemd/system").is_dir()
    stop = ["systemctl", "stop", service] if runs_systemd else ["service", service, "stop"]
    for step in (["systemctl", "disable", service], stop):
        if shutil.which(step[0]) is not None:
            subprocess.run(step, stdout=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    sys.exit(main())
