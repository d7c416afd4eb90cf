"""Print numbered lines, one every 10 ms, with torch loaded; leave a file when all were printed.

    prints_on.py COUNT FILE [fork]

With `fork`, so does a child process that loaded nothing, as a loader worker would, with lines of its own.
"""

import os
import sys
import time
from pathlib import Path

import torch  # noqa: F401 - what arms Holdfast

count, file = int(sys.argv[1]), Path(sys.argv[2])
child = os.fork() if "fork" in sys.argv else -1
who = "line" if child else "child's line"
for number in range(count):
    os.write(1, f"{who} {number}\n".encode())  # in one piece: the other one prints at the same moment
    time.sleep(0.01)
if child > 0:
    os.waitpid(child, 0)
if child:
    file.write_text("all printed")
