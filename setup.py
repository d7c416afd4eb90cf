"""The one thing that pyproject.toml cannot say yet: a compiled part, left out where there is no compiler."""

from setuptools import Extension, setup

BY_ADDRESS = Extension(
    "holdfast.inside.capture._by_address",
    ["src/holdfast/inside/capture/_by_address.c"],
    extra_compile_args=["-O3"],
    optional=True,  # without it the same numbers come from torch, a little slower
)

setup(ext_modules=[BY_ADDRESS])
