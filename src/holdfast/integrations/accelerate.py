"""Accelerate: a tracker, and hooks around `save_state` and `load_state`.

accelerator = Accelerator(log_with=(tracker := HoldfastTracker(policy="heal")))
(batches,) = tracker.attach(accelerator, loader)  # after `prepare`: `save_state` now holds the position in the data
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import holdfast
from holdfast.checkpoints.clean import newest
from holdfast.integrations.trainer_run import TrainerRun
from holdfast.state.position import read_positions, set_positions

try:
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker
except ImportError:
    raise ImportError("Holdfast's tracker for Accelerate needs it: pip install accelerate") from None


class HoldfastTracker(GeneralTracker):  # type: ignore[misc]  # it has no types
    """Records what is logged with `accelerator.log`; `options` are those of `holdfast.watch`: name, folder, policy, …"""

    name = "holdfast"
    requires_logging_directory = False

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.holdfast = TrainerRun(**options)
        self._accelerator: Accelerator | None = None
        self._positions: list[holdfast.Position[Any]] = []
        self._saved: list[tuple[str, int]] = []  # written since the last look, and at which step
        self._folder = Path()  # where `heal` has it saved
        self._loaded: str | None = None

    @property
    def tracker(self) -> holdfast.Run | None:
        """The run."""
        return self.holdfast.run

    def start(self) -> None:
        """Called by `init_trackers`."""
        self.holdfast.begin((), (), stop=None)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """The `config` of `init_trackers`."""
        if self.holdfast.run is not None:
            self.holdfast.run.settings(**values)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Metrics of an evaluation have names such as `val_loss`; an `epoch` among the values is the run's."""
        epoch = values.get("epoch")
        chosen = {name: value for name, value in values.items() if name != "epoch"}
        self.holdfast.evaluated(chosen, epoch=int(epoch) if isinstance(epoch, (int, float)) else None)
        self._list_saved()

    def finish(self) -> None:
        """Called by `end_training`."""
        self._between_updates()
        self.holdfast.end()

    # The state

    def attach(self, accelerator: Accelerator, *loaders: Any, trigger: bool = False) -> list[holdfast.Position[Any]]:
        """Have `save_state` list and verify what it wrote, and hold the position in these loaders: iterate over what is returned.

        When the loop asks for the next batch, `save_state` writes what `heal` wants saved: beside the last one of the script, or
        into its project folder, or into the run. With `trigger`, `heal` stops through `accelerator.set_trigger()`, and the loop
        ends when `check_trigger()` says so.
        """
        self._accelerator = accelerator
        self._positions = [holdfast.Position(loader, on_ask=self._between_updates) for loader in loaders]
        accelerator.register_for_checkpointing(self)
        accelerator.register_save_state_pre_hook(self._before_save)
        accelerator.register_load_state_pre_hook(self._before_load)
        run = self.holdfast.begin((), (), stop=accelerator.set_trigger if trigger else None)
        self._folder = Path(accelerator.project_dir or run.folder / "accelerate")
        return self._positions

    def state_dict(self) -> dict[str, Any]:
        """Goes into every checkpoint of `save_state`."""
        return {"step": self.holdfast.num_steps, "positions": read_positions(self._positions)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """`load_state` restores what `save_state` has kept."""
        set_positions(self._positions, state["positions"])
        if self._loaded is not None:
            epoch = self._positions[0].passes if self._positions else None
            self.holdfast.resumed(self._loaded, int(state["step"]), epoch)

    def _before_save(self, models: list[Any], weights: list[Any], output_dir: str) -> None:
        self._list_saved()
        self._folder = Path(output_dir).parent
        self._saved.append((output_dir, self.holdfast.num_steps))

    def _before_load(self, models: list[Any], input_dir: str) -> None:
        self._loaded = input_dir

    def _between_updates(self) -> None:
        """Save if `heal` asked for it, and list what was saved."""
        if self._accelerator is not None and self.holdfast.takes_save():
            if self._accelerator.project_configuration.automatic_checkpoint_naming:
                self._accelerator.save_state()
            else:
                self.holdfast.save(self._folder, "", self._accelerator.save_state)
        self._list_saved()

    def _list_saved(self) -> None:
        saved, self._saved = self._saved, []
        for path, step in saved:
            self.holdfast.wrote(path, step=step)


def newest_checkpoint(folder: str | Path) -> str | None:
    """The newest folder of `save_state` in a folder that is whole and finite, for `load_state`; None if there is none."""
    folders = [path for path in Path(folder).iterdir() if path.is_dir()] if Path(folder).is_dir() else []
    return newest(folders)
