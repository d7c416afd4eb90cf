"""Save a sharded state: every rank copies its part and goes on; in their helper threads the ranks write one checkpoint together.

Rank 0 leads: it makes the spare folder, and when all parts are on the disk it adds training.pt and the manifest and gives the
folder its name. A rank that dies before that leaves a spare folder, never a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.checkpoints import spare
from holdfast.checkpoints.write import begin_checkpoint, finish_checkpoint, sync_folder
from holdfast.errors import StorageError
from holdfast.inside.saving.host_state import HostState, as_numbers
from holdfast.inside.saving.saver import Job, Saver
from holdfast.inside.saving.shard_names import marked, name_tensors
from holdfast.inside.saving.sharded import SHARDS, own_files, write_shards
from holdfast.inside.saving.together import Together, finish_before_groups_go
from holdfast.inside.snapshots.plain import Ref, put_together
from holdfast.inside.snapshots.reading import Tree
from holdfast.inside.snapshots.state import TrainingState

OF_EACH_RANK = ("randomness", "loader")
_NAMED = 5  # bad tensors that a finding names


class ShardedSaver(Saver):
    """Saves what all ranks hold together. Every rank must ask for every save; one that comes early waits for the one before."""

    _together: Together | None = None

    def save(self, state: TrainingState, step: int | None, facts: Mapping[str, Any], also: Mapping[str, Any]) -> Job | None:
        """Copy this rank's part and have it written with those of the others."""
        if self._together is None:
            self._together = Together()
            finish_before_groups_go(self)
        self._drop = False  # whether one is under way may differ between ranks
        return super().save(state, step, facts, also)

    def begin_again(self) -> None:
        """In a forked child there are no other ranks."""
        super().begin_again()
        self._together = None

    # In the helper thread

    def _carry_out(self, job: Job) -> None:
        assert job.state is not None and self._together is not None
        try:
            self._write_together(job, job.state, self._together)
        except NonFinite as error:
            self.telling.failed(error, job.step, code="checkpoint-non-finite", tensors=error.tensors[:_NAMED])
            return
        if self._together.rank == 0:
            self.telling.saved(job.path, job.step, metrics=job.facts["metrics"])
            self._tidy_up(job.path)

    def _write_together(self, job: Job, state: HostState, together: Together) -> None:
        """Step by step, all ranks each of them; what fails on one rank is raised on all."""
        leads = together.rank == 0
        state.arrive()
        job.facts["metrics"] = as_numbers(job.facts["metrics"])
        names = name_tensors(state.tree, state.specs)
        job.step = together.share(lambda: job.step)[0]
        _refuse_bad(job.step, together.share(lambda: _bad_in(state, names)))
        size = sum(together.share(lambda: state.size))
        folder = Path(together.share(lambda: str(begin_checkpoint(self.folder, job.step, size=size)) if leads else "")[0])
        try:
            write_shards(folder / SHARDS, names, state.hosts, state.specs, together.group)
            self._moved()
            files = together.share(lambda: own_files(folder / SHARDS, together.rank))
            own = together.share(lambda: own_state(state))
            finish = partial(self._finish, job, folder, {name: facts for each in files for name, facts in each.items()}, own)
            job.path = Path(together.share(lambda: finish(marked(state.tree, names, state.hosts)) if leads else "")[0])
            job.saved = True
        finally:
            if leads:
                spare.clear(folder)

    def _finish(self, job: Job, folder: Path, files: Mapping[str, Any], own: list[Tree], tree: Tree) -> str:
        """All parts are on the disk: add the rest, give the folder its name, and read it back."""
        tree["ranks"] = dict(enumerate(own[1:], 1))
        sync_folder(folder / SHARDS)
        path = finish_checkpoint(folder, job.step, {"training": tree}, others=files, moved=self._moved, **job.facts)
        self._read_back(path)
        return str(path)


def own_state(state: HostState) -> Tree:
    """What each rank has for itself, in plain containers and tensors."""
    own = {name: state.tree[name] for name in OF_EACH_RANK if name in state.tree}
    return put_together(own, lambda ref: state.hosts[ref.number].clone(), arrays=False)  # type: ignore[no-any-return]


class NonFinite(StorageError):
    """A state that is not fit to be saved."""

    def __init__(self, problem: str, tensors: list[dict[str, Any]]) -> None:
        super().__init__(problem, fix="go back to the newest clean checkpoint: store.restore(model=..., optimizer=...)")
        self.tensors = tensors


def _bad_in(state: HostState, names: Mapping[Ref, str]) -> list[dict[str, Any]]:
    return [{"name": names.get(Ref(number), "?"), "non_finite": count} for number, count in state.non_finite().items()]


def _refuse_bad(step: int, bad: list[list[dict[str, Any]]]) -> None:
    """Refuse on every rank what is bad on one."""
    found = [{"rank": rank, **row} for rank, rows in enumerate(bad) for row in rows]
    if found:
        first = f"first {found[0]['name']} on rank {found[0]['rank']}"
        raise NonFinite(f"The state of step {step} was not saved: {len(found)} tensors hold NaN or Inf, {first}.", found)
