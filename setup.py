"""The one thing that pyproject.toml cannot say yet: compiled parts, left out where there is no compiler."""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

BY_ADDRESS = Extension(
    "holdfast.inside.gradients._by_address",
    ["src/holdfast/inside/gradients/_by_address.c"],
    extra_compile_args=["-O3"],
    libraries=["m"] if sys.platform == "linux" else [],
    optional=True,  # without it the same numbers come from torch, a little slower
)

ENTER = Extension(
    "holdfast.probe.attach._enter",
    ["src/holdfast/probe/attach/_enter.c"],
    libraries=["dl", "pthread"] if sys.platform == "linux" else [],
    optional=True,  # without it `holdfast attach` gets into Python 3.14 and newer only
)


class Wheel(bdist_wheel):
    """A wheel without compiled parts is one for every machine."""

    def run(self) -> None:
        """Compile first: only then it is known what the wheel holds."""
        self.run_command("build")
        compiled = self.get_finalized_command("build_ext").get_outputs()
        self.root_is_pure = not any(Path(file).exists() for file in compiled)
        super().run()


setup(ext_modules=[BY_ADDRESS, ENTER], cmdclass={"bdist_wheel": Wheel})
