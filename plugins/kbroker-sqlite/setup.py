"""What pyproject.toml cannot say: a build leaves nothing in the checkout.

setuptools copies modules to build/lib and packs what lies there, so a module that was since renamed or removed would come along
in the next wheel. An old *.egg-info would tell a Python that runs in the checkout of entry points that have gone.
Each distribution of the checkout has the same file.
"""

import atexit
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


setup(cmdclass={"build": Build, "egg_info": EggInfo})
