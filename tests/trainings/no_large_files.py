"""As on a disk whose files must stay smaller than any table of Holdfast's: no_large_files.py OUT."""

from __future__ import annotations

import resource

resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, 100 << 10))
import without_modules  # noqa: E402, F401 - it trains when it is imported
