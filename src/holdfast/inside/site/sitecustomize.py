"""Load Holdfast into an unchanged script: `holdfast run` puts this folder first on PYTHONPATH.

Python imports `sitecustomize` at startup. This one waits for `import torch`, removes its folder from `sys.path`, and imports
the `sitecustomize` that Python would have found without it; if that is missing or raises, Python sees the same as
without this file. Any Python version may run this: no annotations, no new syntax.
"""

import os
import sys

if __name__ == "sitecustomize":
    _here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs every start of Python
    _wanted = os.environ.get("HOLDFAST_RUN") or os.environ.get("HOLDFAST_ALSO")
    if _wanted and sys.version_info >= (3, 10):
        try:  # noqa: SIM105 - contextlib costs every start of Python
            __import__("holdfast_on_torch").wait_for_torch()
        except Exception:  # noqa: BLE001 - a script must start, whatever is wrong here
            pass
    sys.path[:] = [entry for entry in sys.path if entry != _here]
    sys.path_importer_cache.pop(_here, None)
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")
