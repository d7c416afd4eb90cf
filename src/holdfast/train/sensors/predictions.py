"""Predictions that are streamed to files while a model is evaluated: Parquet, or ROOT."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.data.predictions import PredictionWriter
from holdfast.train.extras import required


class RootWriter(PredictionWriter):
    """A tree `predictions` in a ROOT file for each rank; it has its name once it is whole."""

    ending = "root"

    def __init__(self, folder: Path, *, buffer_mb: float = 8.0, overwrite: bool = False) -> None:
        super().__init__(folder, buffer_mb=buffer_mb, overwrite=overwrite)
        self._file: Any = None
        self._unfinished = self.folder / f"rank-{self._rank}.root.unfinished"

    def store(self, columns: Mapping[str, list[np.ndarray[Any, Any]]]) -> None:
        """Write what is gathered as baskets of the tree."""
        arrays = {name: np.concatenate(parts) if len(parts) > 1 else parts[0] for name, parts in columns.items()}
        if self._file is None:
            uproot = required("uproot", extra="sensors")
            self._file = uproot.recreate(self._unfinished, compression=uproot.LZ4(1))
            self._file.mktree("predictions", {name: np.dtype((array.dtype, array.shape[1:])) for name, array in arrays.items()})
        self._file["predictions"].extend(arrays)

    def close(self) -> None:
        """Write the rest, and give the file its name."""
        super().close()
        if self._file is not None:
            self._file.close()
            self._unfinished.replace(self.folder / f"rank-{self._rank}-00000.root")
            self._file = None


def writer_of(format: str, folder: Path) -> PredictionWriter:
    """What writes predictions into a folder; those of an earlier attempt are replaced."""
    kind = RootWriter if format == "root" else PredictionWriter
    return kind(folder, overwrite=True)
