"""Say each signal that arrives, until `end` is read or a SIGTERM has come; ends with code 7."""

import signal
import sys
import time

ended = False


def say(number: int, _frame: object) -> None:
    global ended
    ended = number == signal.SIGTERM
    print(f"[{signal.Signals(number).name}]", flush=True)


for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGCONT", "SIGWINCH"):
    signal.signal(getattr(signal, name), say)
print("ready", flush=True)
deadline = time.monotonic() + 30
while not ended and time.monotonic() < deadline:
    time.sleep(0.02)
time.sleep(0.2)
sys.exit(7)
