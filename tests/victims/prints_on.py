"""Print numbered lines, one every 10 ms, with torch loaded; leave a file when all were printed.

    prints_on.py COUNT FILE [fork]

With `fork`, a child process that loaded nothing prints the lines, as a loader worker would.
"""

import os
import sys
import time
from pathlib import Path

import torch  # noqa: F401 - what arms Holdfast

count, file = int(sys.argv[1]), Path(sys.argv[2])
child = os.fork() if "fork" in sys.argv else 0
if child:
    os.waitpid(child, 0)
    sys.exit()
for number in range(count):
    print("line", number, flush=True)
    time.sleep(0.01)
file.write_text("all printed")
