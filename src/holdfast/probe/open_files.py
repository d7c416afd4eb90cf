"""How many files this process may have open: a mapped segment holds one, and a run may have thousands of ranks."""

from __future__ import annotations

import contextlib

import psutil

_ALWAYS_THERE = 128


def make_room(files: int) -> None:
    """Take as many more as are needed of what the system allows; where it is less, the ranks beyond are told as unreadable."""
    if files <= _ALWAYS_THERE:
        return
    with contextlib.suppress(ImportError, OSError, ValueError, psutil.Error):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = psutil.Process().num_fds() + files + _ALWAYS_THERE
        if soft != resource.RLIM_INFINITY and soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
