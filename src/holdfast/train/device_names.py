"""What `--device` means. torch takes seconds to import, so it is asked only where the setting does not say enough."""

from __future__ import annotations

from holdfast.errors import UsageError


def ranks(setting: str) -> int:
    """How many processes train with this `--device`; one that does not exist is an error."""
    return 1 if setting == "auto" else len(devices(setting))


def devices(setting: str) -> list[str]:
    """The devices that `--device` names, one per rank: `cpu`, `cuda:0`, …; one that does not exist is an error."""
    names = [name.strip() for name in setting.split(",") if name.strip()]
    if names == ["auto"]:
        import torch

        return ["cuda:0" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"]
    if names and set(names) <= {"cpu", "mps"} and (len(names) == 1 or "mps" not in names):
        return names
    if not names or not all(name.isdecimal() for name in names) or len(set(names)) != len(names):
        raise UsageError(f"device {setting!r} does not exist.", fix="--device cpu, --device 0, --device 0,1 or --device auto")
    import torch

    count = torch.cuda.device_count()
    missing = [name for name in names if int(name) >= count]
    if missing:
        there = f"this machine has {count} ({', '.join(map(str, range(count)))})" if count else "this machine has no CUDA GPU"
        fix = f"--device {','.join(map(str, range(min(count, len(names)))))}" if count else "--device cpu"
        requested = f"GPU {missing[0]} was" if len(missing) == 1 else f"GPUs {', '.join(missing)} were"
        raise UsageError(f"{requested} requested, but {there}.", fix=fix)
    return [f"cuda:{name}" for name in names]
