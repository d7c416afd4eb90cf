"""Pages from the templates beside this file; figures are SVG in the colours of the page, on light and dark paper."""

from __future__ import annotations

from pathlib import Path

from holdfast.units import number


def rendered(template: str, **values: object) -> str:
    """A page, a figure or the stylesheet; values are escaped, lone surrogates of file names replaced."""
    from jinja2 import Environment, FileSystemLoader

    folder = FileSystemLoader(Path(__file__).parent / "templates")
    pages = Environment(loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    pages.filters |= {"number": _number, "thousands": "{:,}".format}
    return pages.get_template(template).render(**values).encode("utf-8", errors="replace").decode()


def _number(value: float | str | None) -> str:
    return str(value) if isinstance(value, (str, bool)) else number(value)
