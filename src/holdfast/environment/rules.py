"""Settings that a machine asks for: what is known to go wrong with the usual ones there, and what to set instead."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.environment.platform import Platform

_GRACE_CARDS = ("GH200", "GB200", "GB300", "Grace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Values to start from on this machine; None for no preference. `because` gives the reasons."""

    workers: int | None = None
    threads: int | None = None
    compile: bool | None = None
    chunk_rows: int | None = None
    because: tuple[str, ...] = ()


def is_grace_hopper(platform: Platform, card_names: tuple[str, ...] = ()) -> bool:
    """A Grace processor with its card: by the card's name, or by the board."""
    return platform.arm and (platform.grace or any(mark in name for name in card_names for mark in _GRACE_CARDS))


def rules_for(platform: Platform, *, card_names: tuple[str, ...] = (), triton: bool = True) -> Rules:
    """What this machine asks for."""
    if is_grace_hopper(platform, card_names):
        return _grace_hopper(platform, triton=triton)
    if platform.kaggle or platform.colab:
        workers = max(1, min(2, int(platform.usable)))
        where = "Kaggle" if platform.kaggle else "Colab"
        return Rules(workers=workers, because=(f"{where} has {platform.usable:g} processors: {workers} loader workers",))
    if platform.arm and platform.system == "Linux" and card_names and not triton:
        return Rules(compile=False, because=("Triton is missing for this ARM machine: torch.compile off",))
    return Rules()


def _grace_hopper(platform: Platform, *, triton: bool) -> Rules:
    threads = max(1, min(16, int(platform.usable) - 1))
    because = [
        "Grace-Hopper: 1 loader worker; more share one memory and slow each other down",
        f"Grace-Hopper: {threads} threads in that worker instead",
        "Grace-Hopper: read tables in chunks of 10,000 rows, memory grows with the chunk, not with the threads",
    ]
    if not triton:
        because.append("Triton is missing: torch.compile off")
    return Rules(workers=1, threads=threads, compile=None if triton else False, chunk_rows=10_000, because=tuple(because))
