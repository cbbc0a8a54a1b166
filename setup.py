"""What pyproject.toml cannot say: a build leaves nothing in the checkout, and an old Python is
refused for what it is.

setuptools copies modules to build/lib and packs what lies there, so a module that was since renamed
or removed would come along in the next wheel. An old *.egg-info would tell a Python that runs in
the checkout of entry points that have gone.

pip below 25.1 looks for what a distribution requires before it compares Python's version, and then
reports only that some of it is not there for an old Python. So for one that is too old nothing is
required, and pip says which Python is.

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
