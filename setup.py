"""The one thing that pyproject.toml cannot say yet: compiled parts, left out where there is no compiler."""

import sys

from setuptools import Extension, setup

BY_ADDRESS = Extension(
    "holdfast.inside.gradients._by_address",
    ["src/holdfast/inside/gradients/_by_address.c"],
    extra_compile_args=["-O3"],
    optional=True,  # without it the same numbers come from torch, a little slower
)

ENTER = Extension(
    "holdfast.probe.attach._enter",
    ["src/holdfast/probe/attach/_enter.c"],
    libraries=["dl", "pthread"] if sys.platform == "linux" else [],
    optional=True,  # without it `holdfast attach` gets into Python 3.14 and newer only
)

setup(ext_modules=[BY_ADDRESS, ENTER])
