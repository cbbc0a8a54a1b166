"""Build steps that pyproject.toml cannot express: a build leaves no files in the checkout, and pip
on an old Python names the Python version as the reason for its refusal.

setuptools copies modules to build/lib and packs everything in it, so a renamed or removed module
would still be in the next wheel. A stale *.egg-info would show removed entry points to a Python
that runs in the checkout.

pip below 25.1 resolves the requirements of a distribution before it checks the Python version. On
an old Python it then reports only that some requirement cannot be satisfied. So on such a Python
this file declares no requirements, and pip reports the version.

Each distribution of the checkout has the same file.
"""

import atexit
import platform
import shutil
import tempfile

from setuptools import setup
from setuptools.command.build import build
from setuptools.command.egg_info import egg_info

SCRATCH = tempfile.mkdtemp(prefix="kbroker-build-")
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)


class Build(build):
    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_base = SCRATCH


class EggInfo(egg_info):
    def initialize_options(self) -> None:
        super().initialize_options()
        self.egg_base = SCRATCH

    def finalize_options(self) -> None:
        if platform.python_version() not in self.distribution.python_requires:
            for described in (self.distribution, self.distribution.metadata):
                described.install_requires, described.extras_require = (
                    [],
                    {name: [] for name in described.extras_require},
                )
        super().finalize_options()


setup(cmdclass={"build": Build, "egg_info": EggInfo})
