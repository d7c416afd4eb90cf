"""Samples of the machine, taken from outside every two seconds: the run's processes, and NVIDIA GPUs.

They start a second after the first training that is seen in the run: a command that never trains, or is over by then, leaves
nothing here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.signals.schema import MISSING, MISSING_INT
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.begun import wait_for_training

if TYPE_CHECKING:
    from holdfast.signals.recorder import Recorder

_EVERY_SECONDS, _SHORT_SECONDS = 2.0, 1.0
_COMMAND_LETTERS = 200
_CLAIM = "sampler"  # the folder itself is nobody's: stacks are kept in it too


class HostSampler:
    """A thread that writes the tables `processes` and `gpus` into the run's `host` folder."""

    def __init__(self, run: RunFolder, root: int, trouble: Trouble) -> None:
        self._run, self._root, self._trouble = run, root, trouble
        self._processes: Processes | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="holdfast-host", daemon=True)

    def follow(self, root: int) -> None:
        """The command was started again."""
        self._root = root
        if self._processes is not None:
            self._processes.follow(root)

    @property
    def most_files(self) -> tuple[int, int] | None:
        """Open files and the limit of the process of the command that was nearest to it."""
        return self._processes.most_files if self._processes is not None else None

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def stop(self) -> None:
        """Seal the tables."""
        self._stop.set()
        self._thread.join(2.0)

    def _work(self) -> None:
        try:
            if wait_for_training(self._run, self._stop, seconds=_SHORT_SECONDS):
                self._sample()
        except Exception as error:  # noqa: BLE001 - a machine that cannot be sampled is still one that trains
            self._trouble.step_back("sampling processes and GPUs", error)

    def _sample(self) -> None:
        path = self._run.path / "host"
        path.mkdir(exist_ok=True)
        try:
            (path / _CLAIM).touch(exist_ok=False)
        except FileExistsError:  # another outside of the same run is at it
            return
        from holdfast.signals.recorder import Recorder

        recorder = Recorder(self._run, Recording(0, 0, path))
        try:
            processes, gpus = Processes(self._root), open_gpus()
            self._processes = processes
            while True:
                for row in processes.rows(recorder):
                    recorder.table("processes").append(row)
                for row in gpus.rows(recorder) if gpus else ():
                    recorder.table("gpus").append(row)
                if self._stop.wait(_EVERY_SECONDS):
                    return
        finally:
            recorder.close()


class Processes:
    """The process tree under `root`, and how busy each process was since it was last seen."""

    def __init__(self, root: int) -> None:
        import psutil

        self._psutil = psutil
        self._root = root
        self._before: dict[tuple[int, float], tuple[float, float]] = {}
        self.most_files: tuple[int, int] | None = None  # open files of the process that is nearest to its limit, and the limit

    def follow(self, root: int) -> None:
        """Another process is the root now."""
        self._root = root
        self.most_files = None

    def rows(self, recorder: Recorder) -> list[tuple[float | int, ...]]:
        """One row for each process that is there now."""
        rows: list[tuple[float | int, ...]] = []
        seen: dict[tuple[int, float], tuple[float, float]] = {}
        for process in self._tree():
            with contextlib.suppress(self._psutil.Error, OSError), process.oneshot():
                rows.append(self._row(process, recorder, seen))
                self._note_files(process)
        self._before = seen
        return rows

    def _note_files(self, process: Any) -> None:
        if not hasattr(process, "rlimit"):
            return
        limit = process.rlimit(self._psutil.RLIMIT_NOFILE)[0]
        if limit > 0:
            now = (int(process.num_fds()), int(limit))
            if self.most_files is None or now[0] * self.most_files[1] > self.most_files[0] * now[1]:
                self.most_files = now

    def _tree(self) -> list[Any]:
        try:
            root = self._psutil.Process(self._root)
            return [root, *root.children(recursive=True)]
        except self._psutil.Error:
            return []

    def _row(
        self, process: Any, recorder: Recorder, seen: dict[tuple[int, float], tuple[float, float]]
    ) -> tuple[float | int, ...]:
        now, times = time.time(), process.cpu_times()
        key, used = (process.pid, process.create_time()), times.user + times.system
        seen[key] = (now, used)
        then, used_then = self._before.get(key, (now, used))
        code = recorder.strings.code
        return (
            now,
            process.pid,
            process.ppid(),
            code(_readable(" ".join(process.cmdline())[:_COMMAND_LETTERS] or process.name())),
            code(process.status()),
            process.memory_info().rss,
            (used - used_then) / (now - then) if now > then else MISSING,
            process.num_threads(),
        )


def _readable(text: str) -> str:
    """Bytes of a command line that are no text become `?`: half a character can be neither printed nor put into Parquet."""
    return text.encode(errors="replace").decode()


class Gpus:
    """The NVIDIA GPUs that the driver shows."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._gpus = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]

    def rows(self, recorder: Recorder) -> list[tuple[float | int, ...]]:
        """One row for each GPU; what it does not tell (MIG, old cards) is missing."""
        return [self._row(number, gpu, recorder) for number, gpu in enumerate(self._gpus)]

    def _row(self, number: int, gpu: Any, recorder: Recorder) -> tuple[float | int, ...]:
        nvml = self._nvml
        name = self._ask(nvml.nvmlDeviceGetName, gpu)
        busy = self._ask(nvml.nvmlDeviceGetUtilizationRates, gpu)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, gpu)
        degrees = self._ask(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU)
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage, gpu)
        return (
            time.time(),
            number,
            MISSING_INT if name is None else recorder.strings.code(name if isinstance(name, str) else name.decode()),
            MISSING if busy is None else busy.gpu / 100,
            MISSING_INT if memory is None else int(memory.used),
            MISSING_INT if memory is None else int(memory.total),
            MISSING if degrees is None else float(degrees),
            MISSING if milliwatts is None else milliwatts / 1000,
        )

    def _ask(self, question: Any, *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None


def open_gpus() -> Gpus | None:
    """None where there is no NVIDIA driver or its Python package."""
    try:
        import pynvml

        pynvml.nvmlInit()
        gpus = Gpus(pynvml)
    except Exception:  # noqa: BLE001 - a driver can fail in many ways; none is the run's business
        return None
    return gpus
