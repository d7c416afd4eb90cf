"""What machine is this, and which settings does it ask for (ARM, Grace-Hopper, Kaggle, Colab)?"""

from __future__ import annotations

import importlib.util
from typing import Any

from holdfast.environment.check import Check, Fix, Verdict, note, ok
from holdfast.environment.machine import Machine
from holdfast.environment.platform import Platform
from holdfast.environment.rules import Rules, rules_for
from holdfast.units import count, size


def ask(machine: Machine) -> Verdict:
    """Say the machine, and aloud every rule that holds on it."""
    platform = machine.platform
    cards = tuple(card.name for card in machine.nvidia.cards)
    rules = rules_for(platform, card_names=cards, triton=importlib.util.find_spec("triton") is not None)
    facts: dict[str, Any] = {
        "system": platform.system, "processor": platform.processor, "processors": platform.cores, "memory": platform.memory,
        "also": platform.names, "cards": list(cards),
    }  # fmt: skip
    facts |= {
        name: value for name in ("workers", "threads", "compile", "chunk_rows") if (value := getattr(rules, name)) is not None
    }
    notes = [*rules.because, *_stays(platform)]
    if notes:
        return note(f"{_called(platform)}: {'; '.join(notes)}", *_fixes(rules, platform), **facts)
    return ok(_called(platform), **facts)


def _called(platform: Platform) -> str:
    names = f" ({', '.join(platform.names)})" if platform.names else ""
    return f"{platform.system} on {platform.processor}{names}, {count(platform.cores, 'processor')}, {size(platform.memory)}"


def _stays(platform: Platform) -> list[str]:
    """What does not outlive the session."""
    if platform.kaggle:
        return ["only /kaggle/working is kept, 20 GB of it, and a session ends after 12 hours"]
    if platform.colab:
        return ["the disk is lost with the session; only a mounted Drive is kept"]
    return []


def _fixes(rules: Rules, platform: Platform) -> list[Fix]:
    fixes = []
    if rules.threads is not None:
        fixes.append(Fix("threads", (f"export OMP_NUM_THREADS={rules.threads}",)))
    if rules.compile is False:
        fixes.append(Fix("no compiling", ("export TORCH_COMPILE_DISABLE=1",)))
    if rules.workers is not None:
        fixes.append(Fix(f"DataLoader(..., num_workers={rules.workers})"))
    if platform.kaggle or platform.colab:
        kept = "/kaggle/working/runs" if platform.kaggle else "/content/drive/MyDrive/runs"
        fixes.append(Fix("keep runs on persistent storage", (f"holdfast run --folder {kept} -- python train.py",)))
    return fixes


CHECK = Check(name="platform", asks="machine type and its rules", ask=ask, seconds=30.0)
