"""Options that every verb about data has: what it is, and how it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataPath = Annotated[str, typer.Argument(metavar="PATH", help="A folder, a data.yaml, a file, or package.module:factory.")]
Format = Annotated[str | None, typer.Option("--format", help="The format, if it is not recognised.")]
Label = Annotated[str | None, typer.Option("--label", help="The column with the classes (tables, arrays, trees).")]
Tree = Annotated[str | None, typer.Option("--tree", help="Which tree of a ROOT file to read.")]
TokenizerFile = Annotated[
    Path | None, typer.Option("--tokenizer", help="tokenizer.json or a vocabulary file, for text.", show_default=False)
]
EmbeddingRows = Annotated[
    int | None, typer.Option("--embedding-rows", help="Rows of the model's embedding, for text and token IDs.")
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, help="Number of processes; 0 means all cores.")]
Also = Annotated[list[Path] | None, typer.Option("--also", help="Allow reading from this folder too.", show_default=False)]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Ignore and do not write the cache.")]
