"""A command whose script runs in the warm Python: for verbs that start a training again and again, seconds less each time.

In the tests, `WarmCommand` answers; as a program, `warm_command.py SOCKET SCRIPT ARGUMENTS…`, it has the script run there with
its own folder and environment, prints what the script printed, and ends with its exit code.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from pathlib import Path

TYPE_CHECKING = False  # this program is started often, and starts in no time
if TYPE_CHECKING:
    from watched_training import WarmPython


class WarmCommand:
    """Runs what the program below asks for."""

    def __init__(self, warm: WarmPython) -> None:
        import threading

        self._warm = warm
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")  # a short path: a longer one is no address
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(f"{self._folder.name}/socket")
        self._socket.listen()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    @property
    def words(self) -> list[str]:
        """What stands before the script on the command line."""
        return [sys.executable, __file__, f"{self._folder.name}/socket"]

    def close(self) -> None:
        """Answer no more."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        self._folder.cleanup()

    def _answer(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with connection, connection.makefile("rw", encoding="utf-8") as file:
                folder, environment, *words = json.loads(file.readline())
                file.write(json.dumps(self._warm.end_of(Path(folder), *words, **environment)))


def main() -> None:
    """Ask, and end as the script did."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        asked = json.dumps([os.getcwd(), dict(os.environ), *sys.argv[2:]])  # noqa: PTH109 - before pathlib is needed
        connection.sendall(f"{asked}\n".encode())
        with connection.makefile(encoding="utf-8") as file:
            code, printed = json.loads(file.read())
    print(printed, end="", flush=True)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
