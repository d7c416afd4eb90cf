"""Which loader setting is tried and which is taken: the rules, on loaders whose rate and memory are a formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from every_case import every_case

from holdfast.loading.benchmark import Search
from holdfast.loading.setting import Limits, Setting, Trial, by_setting, chosen

MB = 1 << 20
ROOMY = Limits(memory=1 << 40)
Rate = Callable[[Setting], float]


def searched(rate: Rate, *, cores: int = 8, limits: Limits = ROOMY, own: Setting | None = None, **more: bool) -> Search:
    """A search over a loader whose workers take 100 MB each, and more for what they fetch before."""
    search = Search(own or Setting(), cores, limits, **more)
    for setting in search.settings():
        assert len(search.trials) < 60, "it does not come to an end"
        memory = setting.workers * (90 + 5 * (setting.prefetch or 0)) * MB
        search.trials.append(Trial(setting=setting, rate=rate(setting) or None, memory=memory, own=setting == search.own))
    return search


def trial(workers: int, rate: float, memory: int = 0, **more: int) -> Trial:
    return Trial(setting=Setting(workers=workers, prefetch=2 if workers else None, **more), rate=rate, memory=memory)


@every_case("peak", [0, 1, 2, 3, 6, 12, 16])
def test_the_number_of_workers_that_is_fastest_is_found(peak: int) -> None:
    found = searched(lambda setting: 100.0 + 50 * min(setting.workers, peak) - 30 * max(0, setting.workers - peak))
    assert found.best.workers == peak


def test_workers_that_bring_next_to_nothing_are_not_taken() -> None:
    best = chosen([trial(0, 50.0), trial(2, 97.0), trial(8, 100.0)], ROOMY)
    assert best is not None and best.setting.workers == 2


def test_a_setting_that_does_not_fit_into_memory_is_never_taken() -> None:
    trials = [trial(0, 50.0, 1 * MB), trial(2, 90.0, 200 * MB), trial(8, 300.0, 800 * MB)]
    assert chosen(trials, ROOMY).setting.workers == 8  # type: ignore[union-attr]
    assert chosen(trials, Limits(memory=500 * MB)).setting.workers == 2  # type: ignore[union-attr]
    assert chosen(trials, Limits(memory=MB // 2)) is None


def test_more_workers_than_memory_allows_are_not_even_tried() -> None:
    found = searched(lambda setting: 100.0 * (1 + setting.workers), limits=Limits(memory=450 * MB))
    assert max(one.setting.workers for one in found.trials) <= 4
    assert found.best.workers == 4


def test_what_waits_for_a_network_may_have_more_workers_than_processors() -> None:
    assert searched(lambda setting: 100.0 * (1 + setting.workers), cores=2).best.workers == 16


def test_what_works_hard_is_not_tried_with_many_times_the_processors() -> None:
    found = searched(lambda setting: 100.0 * min(max(1, setting.workers), 2), cores=2)
    assert found.best.workers == 2
    assert max(one.setting.workers for one in found.trials) <= 4


def test_on_grace_hopper_one_worker_is_kept_and_its_threads_are_raised() -> None:
    rule = Limits(memory=1 << 40, workers=1, threads=16, because=("Grace-Hopper: 1 loader worker",))
    found = searched(lambda setting: 100.0 * (1 + setting.workers) * (setting.threads or 1), cores=72, limits=rule)
    assert found.best.workers == 1
    assert found.best.threads == 16
    assert "num_workers=1" in found.best.to_paste and "set_num_threads(16)" in found.best.to_paste
    free = searched(lambda setting: 100.0 * (1 + setting.workers), cores=72)
    assert free.best.workers == 64


def test_noise_does_not_change_what_the_user_has_set() -> None:
    own = Setting(workers=4, prefetch=2)
    noisy = searched(lambda setting: 100.0 * min(setting.workers, 4) + (7 if setting.prefetch == 8 else 0), own=own)
    assert noisy.best == own


def test_more_is_fetched_before_where_that_helps() -> None:
    found = searched(lambda setting: 100.0 * min(setting.workers, 2) * (1.0 if (setting.prefetch or 0) < 8 else 1.5))
    assert found.best == Setting(workers=2, prefetch=8)


def test_memory_is_pinned_only_where_there_is_a_card_and_it_helps() -> None:
    helps: Rate = lambda setting: 200.0 if setting.pin else 100.0  # noqa: E731
    assert searched(helps, cuda=True).best.pin
    assert not searched(helps).best.pin
    assert not searched(lambda setting: 50.0 if setting.pin else 100.0, cuda=True).best.pin


def test_workers_that_always_fail_are_given_up_after_two_tries() -> None:
    found = searched(lambda setting: 0.0 if setting.workers else 100.0)
    assert found.best.workers == 0
    assert sum(one.setting.workers > 0 for one in found.trials) == 2


def test_a_first_measurement_that_waited_for_the_disk_does_not_make_the_gain_look_larger() -> None:
    own = replace(trial(0, 10.0), own=True)
    assert by_setting([own, replace(own, rate=100.0)])[0].rate == 100.0
    assert by_setting([replace(own, rate=90.0), replace(own, rate=100.0)])[0].rate == 95.0


def test_the_line_to_paste_is_what_was_measured() -> None:
    assert Setting().to_paste == "DataLoader(..., num_workers=0, pin_memory=False)"
    line = Setting(workers=4, prefetch=8, pin=True).to_paste
    assert line == "DataLoader(..., num_workers=4, prefetch_factor=8, persistent_workers=True, pin_memory=True)"
