"""What one rank alone does not show: weights that differ, and a GPU that is not used."""

from __future__ import annotations

import numpy as np
from every_case import every_case

from holdfast.detectors.finding import Finding
from holdfast.detectors.machine import MachineView, computing_on_cpu, low_gpu_utilisation
from holdfast.detectors.rank_divergence import RankDivergence
from holdfast.detectors.runs.slow_step import slow_step
from holdfast.detectors.straggler import Held, Straggler
from holdfast.signals.run_view import STEP_COLUMNS, RunView
from holdfast.signals.schema import TABLES


def compared(*steps: tuple[tuple[float, float], ...]) -> list[Finding]:
    """Norms of gradients and weights of each rank, step by step."""
    watch = RankDivergence(len(steps[0]))
    found = [watch.add(rank, 500 * at, *norms) for at, ranks in enumerate(steps, 1) for rank, norms in enumerate(ranks)]
    return [one for one in found if one is not None]


def test_ranks_with_the_same_weights_are_left_alone() -> None:
    assert compared(((1.0, 5.0), (1.0, 5.0)), ((0.7, 5.2), (0.7, 5.2 + 1e-9))) == []


def test_weights_that_come_apart_are_told_once_from_where_they_did() -> None:
    (found,) = compared(((1.0, 5.0), (1.0, 5.0)), ((0.7, 5.2), (0.7, 5.9)), ((0.7, 5.2), (0.7, 6.9)))
    assert found.evidence["onset"] == 1000 and found.evidence["rank_1"] == 5.9 and found.severity == "critical"


def test_shards_and_trainings_of_their_own_are_left_alone() -> None:
    assert compared(((1.0, 5.0), (2.0, 7.0)), ((0.7, 5.2), (0.9, 7.4))) == []


def test_ranks_that_stop_sharing_their_gradients_are_told() -> None:
    (found,) = compared(((1.0, 5.0), (1.0, 5.0)), ((0.7, 5.2), (1.9, 5.9)))
    assert not found.evidence["gradients_shared"]


def machine(**given: object) -> MachineView:
    usual: dict[str, object] = {
        "step": 99,
        "steps": 100,
        "step_seconds": 0.4,
        "on_gpu": True,
        "gpus": 1,
        "utilisation": np.ones(40),
    }
    return MachineView(**{**usual, **given})  # type: ignore[arg-type]


def test_a_gpu_that_is_not_used_is_critical_where_steps_are_long_and_a_remark_where_they_are_short() -> None:
    slow, quick = computing_on_cpu(machine(on_gpu=False)), computing_on_cpu(machine(on_gpu=False, step_seconds=0.01))
    chosen = computing_on_cpu(machine(on_gpu=False, cpu_chosen=True))
    assert slow is not None and slow.severity == "critical"
    assert chosen is not None and chosen.severity == "info"
    assert quick is not None and quick.severity == "info"


@every_case("given", [{}, {"on_gpu": False, "gpus": 0}, {"on_gpu": False, "steps": 10}])
def test_without_a_gpu_or_with_one_in_use_nothing_is_said(given: dict[str, object]) -> None:
    assert computing_on_cpu(machine(**given)) is None


def test_a_gpu_that_is_idle_half_of_the_time_is_a_remark() -> None:
    idle = low_gpu_utilisation(machine(utilisation=np.full(40, 0.2)))
    assert idle is not None and idle.severity == "info" and idle.evidence["utilisation"] == 0.2
    assert low_gpu_utilisation(machine()) is None
    assert low_gpu_utilisation(machine(utilisation=np.full(10, 0.2))) is None  # too early to tell


def timed(seconds: np.ndarray, waited: np.ndarray | None = None) -> RunView:
    view = RunView()
    missing = {column.name: column.kind.missing for column in TABLES["steps"].columns}
    for start in range(0, len(seconds), 64):
        part = seconds[start : start + 64]
        rows = {name: np.full(len(part), missing[name]) for name in STEP_COLUMNS}
        rows |= {"step": np.arange(start, start + len(part)), "step_seconds": part}
        rows |= {} if waited is None else {"data_seconds": waited[start : start + 64]}
        view.add_steps(rows)  # type: ignore[arg-type]
    return view


def test_steps_that_get_slower_and_slower_are_told() -> None:
    found = slow_step(timed(np.linspace(0.1, 0.9, 1024)))
    assert found is not None and found.severity == "info" and found.evidence["times"] > 2
    worse = slow_step(timed(np.concatenate([np.full(512, 0.1), np.full(256, 0.3), np.full(256, 0.5)])))
    assert worse is not None and worse.severity == "warning"
    short = slow_step(timed(np.concatenate([np.full(64, 0.01), np.full(64, 0.07)])))
    assert short is not None and short.severity == "info", "a machine that others use for some seconds"


def test_steps_that_only_wait_longer_for_data_are_not_slower_themselves() -> None:
    waited = np.concatenate([np.full(512, 0.001), np.full(256, 0.3), np.full(256, 0.5)])
    assert slow_step(timed(0.1 + waited, waited)) is None
    assert slow_step(timed(0.1 + waited)) is not None


def late(share: float, *, ranks: int = 4, steps: int = 200, seed: int = 0, slow: int = 2, always: float = 1.0) -> list[Finding]:
    """Steps of 0.1 s in which the others wait that share for one rank, among the noise of a busy machine."""
    random, watch, found = np.random.default_rng(seed), Straggler(ranks), []
    for step in range(steps):
        comes = random.exponential(0.01, ranks)  # after the first
        comes[slow] += 0.1 * share if random.random() < always else 0.0
        held = (0.02 + comes.max() - comes).tolist()
        found += [watch.add(rank, step, Held(held[rank], 0.1, 0.0)) for rank in random.permutation(ranks).tolist()]
    return [one for one in found if one is not None]


def test_a_rank_that_all_others_wait_for_is_told_once() -> None:
    (found,) = late(0.8)
    assert found.evidence["rank"] == 2 and found.severity == "warning" and found.step < 40
    assert 0.6 < found.evidence["fraction"] < 1.0 and not found.evidence["data_bound"]


@every_case("seed", range(10))
def test_ranks_that_come_late_in_turn_or_a_little_are_no_stragglers(seed: int) -> None:
    assert late(0.0, ranks=2, slow=0, seed=seed, steps=1000) == []
    assert late(0.15, seed=seed) == [], "the others lose little"
    assert late(0.9, seed=seed, always=0.4) == [], "a rank that saves now and then"


def test_a_straggler_that_waits_for_its_data_is_told_so() -> None:
    watch = Straggler(2)
    found = [watch.add(rank, step, Held(0.02 + 0.08 * (1 - rank), 0.1, 0.08 * rank)) for step in range(40) for rank in (0, 1)]
    (one,) = [finding for finding in found if finding is not None]
    assert one.evidence["data_bound"] and one.evidence["rank"] == 1


@every_case("seed", range(10))
def test_noise_a_slow_start_a_busy_hour_and_tiny_steps_are_no_slow_steps(seed: int) -> None:
    noise = np.random.default_rng(seed).lognormal(0, 0.4, 1024)
    busy = noise.copy()
    busy[700:850] *= 4  # others came, and went
    assert slow_step(timed(0.1 * noise)) is None
    assert slow_step(timed(0.1 * busy)) is None
    assert slow_step(timed(0.1 * np.concatenate([5 * noise[:100], noise[100:]]))) is None
    assert slow_step(timed(np.concatenate([np.full(512, 1e-3), np.full(512, 4e-3)]))) is None
