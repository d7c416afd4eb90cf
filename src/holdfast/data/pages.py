"""Pages from templates that share one stylesheet; figures are SVG in the colours of the page, on light and dark paper."""

from __future__ import annotations

from pathlib import Path

from holdfast.units import number


def rendered(template: str, *, beside: Path | None = None, **values: object) -> str:
    """A page from its template, here or in the folder `beside`; values are escaped, lone surrogates of file names replaced."""
    from jinja2 import Environment, FileSystemLoader

    folders = [Path(__file__).parent / "templates", *([beside] if beside is not None else [])]
    pages = Environment(loader=FileSystemLoader(folders), autoescape=True)
    pages.filters |= {"number": number, "thousands": "{:,}".format}
    return pages.get_template(template).render(**values).encode("utf-8", errors="replace").decode()
