"""Stands in for a torch that this machine cannot have: what it answers comes as JSON in FAKE_TORCH."""

import json
import os
import warnings
from types import SimpleNamespace

_told = json.loads(os.environ["FAKE_TORCH"])
if "import_error" in _told:
    raise ImportError(_told["import_error"])
__version__ = _told["version"]
version = SimpleNamespace(cuda=_told.get("cuda"), hip=None)
backends = SimpleNamespace()


def get_num_threads():
    return _told.get("threads", 1)


def _available():
    if _told.get("why_not"):
        warnings.warn(_told["why_not"], UserWarning, stacklevel=1)
    return _told.get("available", False)


def ones(_, device):
    if device in _told.get("broken", {}):
        raise RuntimeError(_told["broken"][device])
    return _Ones()


class _Ones:
    def __add__(self, _):
        return SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: 128))


def _properties(number):
    name, major, minor = _told["devices"][number]
    return SimpleNamespace(name=name, major=major, minor=minor, total_memory=1 << 34)


cuda = SimpleNamespace(
    get_arch_list=lambda: _told.get("architectures", []),
    is_available=_available,
    device_count=lambda: len(_told.get("devices", [])),
    get_device_properties=_properties,
    can_device_access_peer=lambda a, b: _told.get("peers", True),
    nccl=SimpleNamespace(version=lambda: (2, 27, 3)),
)
