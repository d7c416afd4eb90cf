"""All checkpoints of a run, sorted by what can be done with them, and the ways to go on that they leave open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.checkpoints.choosing.candidates import Placed, best, newest, without_copies
from holdfast.checkpoints.choosing.options import Option, PassedOver, Settings, fresh, gentler, multiply, warm_up
from holdfast.checkpoints.choosing.reasons import (
    WEIGHTS_ONLY,
    change_words,
    clean_words,
    end_words,
    none_words,
    overfitting_words,
    unclean_words,
)
from holdfast.checkpoints.choosing.setback import Setback
from holdfast.checkpoints.choosing.setbacks import setbacks, suspect
from holdfast.checkpoints.history import Change, History


@dataclass(frozen=True, slots=True)
class Field:
    """What there is to choose from; made with `of`."""

    history: History
    setbacks: list[Setback]
    change: Change | None  # the one that may have led to the trouble
    usable: list[Placed]  # clean, and from before the trouble
    within: list[Placed]  # clean, and from within it or from nobody knows when
    copies: list[tuple[Placed, Placed]]  # one that another one stands for
    left: list[tuple[Placed, Placed]]  # one of a course that was given up, and an earlier one that was written later
    not_clean: list[Placed]

    @classmethod
    def of(cls, placed: Sequence[Placed], history: History) -> Field:
        """Sort them."""
        dirty = [one for one in placed if not one.candidate.clean]
        clean, copies = without_copies([one for one in placed if one.candidate.clean])
        left = _left_behind(clean)
        clean = [one for one in clean if all(one is not other for other, _ in left)]
        found = sorted([*setbacks(history), *_of_weights(clean, dirty, history)], key=lambda one: one.begin)
        lasting = [one for one in found if one.lasts]
        change = next((one for trouble in lasting if (one := suspect(history, trouble)) is not None), None)
        within = [one for one in clean if _trouble_of(one, found) or (lasting and one.position is None)]
        usable = [one for one in clean if all(one is not other for other in within)]
        return cls(history, found, change, usable, within, copies, left, dirty)

    @property
    def trouble(self) -> list[Setback]:
        """What the run never came back from, the earliest first."""
        return [one for one in self.setbacks if one.lasts]

    # The ways

    def options(self) -> list[Option]:
        """Every way that is open."""
        ways = [self._best(), self._before_the_change() if self.change is not None else self._earlier()]
        if not self.trouble:
            ways = [self._newest(), self._best()]
        return [*(one for one in ways if one is not None), self._fresh()]

    def _newest(self) -> Option | None:
        taken = newest(self.usable)
        return self._option("N", taken, {}, end_words(taken, self.setbacks, self.history)) if taken is not None else None

    def _best(self) -> Option | None:
        """The best by its metric; of a run that was well only if it is not the newest."""
        last = newest(self.usable)
        taken = best(self.usable, self.history) or last
        if taken is None or (taken is last and not self.trouble):
            return None
        more = overfitting_words(self.trouble, self.history) if self.change is None else []
        return self._option("A", taken, gentler(self.history, self.trouble, taken.candidate, taken.position), more)

    def _before_the_change(self) -> Option | None:
        change = self.change
        taken = newest([one for one in self.usable if change and one.position is not None and one.position <= change.step])
        if taken is None or change is None:
            return None
        settings = gentler(self.history, self.trouble, taken.candidate, taken.position)
        if change.factor is not None and change.factor < settings["lr"]["value"]:
            settings["lr"] = multiply(change.factor, settings["lr"].get("was"))
        return self._option("B", taken, settings, change_words(change, self.history))

    def _earlier(self) -> Option | None:
        """One that is older than the best, for when that goes wrong again."""
        first = best(self.usable, self.history) or newest(self.usable)
        taken = newest([one for one in self.usable if first is not None and one.age < first.age])
        if taken is None:
            return None
        return self._option("B", taken, gentler(self.history, self.trouble, taken.candidate, taken.position), [])

    def _fresh(self) -> Option:
        everyone = [one.candidate for one in (*self.usable, *self.within, *self.not_clean)]
        why = [] if self.usable else [none_words(self.within, self.not_clean, self.trouble, self.history)]
        because = (*why, *(one.words for one in self.trouble))
        settings = fresh(self.history, self.trouble, everyone)
        return Option(letter="C", candidate=None, position=None, settings=settings, because=because)

    def _option(self, letter: str, taken: Placed, settings: Settings, more: Sequence[str]) -> Option:
        """An option; weights alone begin with a fresh optimizer, which wants a warm-up."""
        limits = [one.begin for one in self.trouble]
        if letter == "B" and self.change is not None:
            limits.append(self.change.step)
        is_best = len(self.usable) > 1 and best(self.usable, self.history) is taken
        because = [*(one.words for one in self.trouble), *more, clean_words(taken, self.history, is_best=is_best)]
        if not taken.whole:
            settings = {**settings, **warm_up(self.history)}
            because.append(WEIGHTS_ONLY.format(unit=self.history.unit))
        return Option(
            letter=letter,
            candidate=taken.candidate,
            position=taken.position,
            settings=settings,
            because=tuple(because),
            before=min(limits, default=None),
            goes_before_a_change=letter == "B" and self.change is not None,
        )

    # What was not taken

    def passed_over(self, taken: Option) -> list[PassedOver]:
        """Everything but the one that was taken, the newest first."""
        unit = self.history.unit
        found = [(one, unclean_words(one)) for one in self.not_clean]
        found += [(one, f"the same {unit} as {other.candidate.path.name}") for one, other in self.copies]
        found += [(one, f"the run went back to {unit} {other.position or 0:,} after it") for one, other in self.left]
        found += [(one, self._within_words(one)) for one in self.within]
        found += [(one, self._not_taken(one, taken)) for one in self.usable if one.candidate is not taken.candidate]
        ordered = sorted(found, key=lambda pair: pair[0].age, reverse=True)
        return [PassedOver(one.candidate, one.position, words) for one, words in ordered]

    def _within_words(self, one: Placed) -> str:
        trouble = _trouble_of(one, self.setbacks)
        if trouble is None:
            return f"it does not say its {self.history.unit}: it may be from within the trouble"
        return f"saved after {self.history.unit} {trouble.begin:,}, within the trouble"

    def _not_taken(self, one: Placed, taken: Option) -> str:
        if one.position is None and taken.position is not None:
            return f"it does not say its {self.history.unit}" + ("" if one.whole else ", and holds weights only")
        if taken.candidate is None or taken.position is None or one.position is None or one.position <= taken.position:
            return "older" if taken.candidate is not None else "not needed"
        if not one.whole:
            return "newer, but weights only"
        if taken.letter == "B" and self.change is not None:
            return "saved after the change"
        return "newer, but not the best"


def _of_weights(clean: Sequence[Placed], dirty: Sequence[Placed], history: History) -> list[Setback]:
    """Weights that are not finite and have no clean ones after them: the training is dead since then."""
    bad = [one for one in dirty if one.candidate.verdict.state == "non-finite" and one.position is not None]
    before = max((one.position for one in clean if one.position is not None), default=-1)
    dead = [one.position for one in bad if one.position is not None and one.position > before]
    if not dead:
        return []
    words = f"the weights saved at {history.unit} {min(dead):,} are not finite"
    begin = before if before >= 0 else min(dead) - 1
    return [Setback(code="non-finite-weights", begin=begin, seen=min(dead), words=words)]


def _trouble_of(one: Placed, found: Sequence[Setback]) -> Setback | None:
    return next((trouble for trouble in found if one.position is not None and trouble.holds(one.position)), None)


def _left_behind(clean: Sequence[Placed]) -> list[tuple[Placed, Placed]]:
    """Checkpoints of a course that was given up, each with an earlier step that was written after it."""
    numbered = [one for one in clean if one.candidate.number is not None and one.position is not None]
    found = []
    for one in numbered:
        later = next((other for other in numbered if _gave_up(one, other)), None)
        if later is not None:
            found.append((one, later))
    return found


def _gave_up(one: Placed, later: Placed) -> bool:
    a, b = one.candidate, later.candidate
    is_later = a.path.parent == b.path.parent and (b.number or 0) > (a.number or 0)
    return is_later and (later.position or 0) < (one.position or 0)
