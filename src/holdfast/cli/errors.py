"""What a verb raises becomes two lines on stderr and an exit code: 0, 1 (something is wrong), 2 (could not)."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from holdfast.errors import HoldfastError, QueryTimeout, UsageError

INTERRUPTED = 130  # exit code after Ctrl-C


def in_words(verb: Callable[[], Any]) -> Any:
    """Call a verb; its errors are printed in two lines, and end the process with their exit code."""
    try:
        answer = verb()
        if sys.stdout is not None:  # closed by whoever started us
            sys.stdout.flush()
    except HoldfastError as error:
        say_error(error)
        leave(error.exit_code, at_once=isinstance(error, QueryTimeout))
    except KeyboardInterrupt:
        leave(INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails once more
        leave(0)
    except Exception as error:
        if is_wrong_use(error):
            say_error(as_usage_error(error))
            leave(HoldfastError.exit_code)
        if hasattr(error, "exit_code"):
            raise  # typer's own: the help, or a verb's exit code
        say_unexpected(error)
        leave(HoldfastError.exit_code)
    return answer


def say_error(error: HoldfastError) -> None:
    """The problem and the fix, on stderr."""
    print(f"error: {error.problem}\n  fix: {error.fix}", file=sys.stderr)


def is_wrong_use(error: Exception) -> bool:
    """Whether typer did not understand the command line. That there is nothing on it is no mistake: it prints the help."""
    return hasattr(error, "format_message") and type(error).__name__ != "NoArgsIsHelpError"


def as_usage_error(error: Any) -> UsageError:
    """A usage error of typer, in our format."""
    text = str(error.format_message()).strip().rstrip(".")
    path = getattr(getattr(error, "ctx", None), "command_path", "holdfast")
    end = "" if text.endswith("?") else "."
    return UsageError(f"{text[:1].lower()}{text[1:]}{end}", fix=f"{path} -h shows the usage")


def say_unexpected(error: Exception) -> None:
    """An error of Holdfast's own, in one line; all of it with HOLDFAST_DEBUG=1."""
    if os.environ.get("HOLDFAST_DEBUG") == "1":
        traceback.print_exc()
    text = " ".join(str(error).split())
    print(f"error: {type(error).__name__}: {text}\n  fix: HOLDFAST_DEBUG=1 shows where; please report it", file=sys.stderr)


def leave(code: int, *, at_once: bool = False) -> None:
    """End the process. `at_once` does not wait for a query that was left behind in its thread."""
    if at_once:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)
