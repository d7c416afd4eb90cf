"""The version of this package, below everything that names it."""

__version__ = "0.1.0"
