"""Pages that `holdfast explain` has on questions rather than failures; written by hand under `topic_pages/`."""

from __future__ import annotations

from importlib.resources import files

TOPICS = {"compile-modes": "which mode of torch.compile for which use"}


def topic_page(name: str) -> str:
    """The page of a topic, as Markdown."""
    return (files("holdfast.diagnosis") / "topic_pages" / f"{name}.md").read_text(encoding="utf-8")
