"""Pages from templates that share one stylesheet; figures are SVG in the colours of the page, on light and dark paper."""

from __future__ import annotations

from pathlib import Path

from holdfast.units import number


def rendered(template: str, **values: object) -> str:
    """A page from its template; every value is escaped, and lone surrogates of file names are replaced."""
    from jinja2 import Environment, FileSystemLoader

    pages = Environment(loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True)
    pages.filters |= {"number": number, "thousands": "{:,}".format}
    return pages.get_template(template).render(**values).encode("utf-8", errors="replace").decode()
