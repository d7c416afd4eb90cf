"""Which names in a pickle are harmless, which need somebody's code, and which no checkpoint needs.

    plain        what checkpoints are made of: tensors, containers, numbers, dates, numpy's arrays
    needs code   a class of torch.nn, of another package or of the script: a full `torch.load` would run its code
    refused      everything else. A file that asks for it is unsafe.

A name is judged when the stream *names* it, and once more when it is made or called. Of Python, torch and numpy everything that
is not listed as harmless (`harmless.py`) is refused. Other packages cannot be listed: what they hold may be named, and an object
of a class may be made, as picklers make the parts of a model (`Class.__new__`, without a call). A call of anything that is not
listed by its name is refused, class or function: `fire.core.Fire` has a capital letter too.
"""

from __future__ import annotations

import re
import sys
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from typing import Literal

from holdfast.checkpoints.harmless import CALLED, NAMED_ONLY, PART_OF, PLAIN
from holdfast.checkpoints.harmless import ITEM_SIZES as ITEM_SIZES

Judgement = Literal["plain", "needs code", "refused"]
Use = Literal["named", "made", "called"]  # made: an object of it, without a call of its own (NEWOBJ)

# Parts of torch whose classes make up models and trainings. Their functions are refused like the rest of torch.
TORCH_CLASSES = (
    *(f"torch.{part}" for part in ("nn", "optim", "amp", "cuda.amp", "quantization", "distributions", "utils.hooks", "ao.nn")),
    *(f"torch.ao.quantization.{part}" for part in ("observer", "fake_quantize", "qconfig", "qconfig_mapping", "stubs")),
    *(f"torch.utils.data.{part}" for part in ("dataset", "sampler", "dataloader", "distributed")),
    *(f"torch.distributed.{part}" for part in ("checkpoint", "tensor", "_tensor", "fsdp", "device_mesh", "_mesh_layout")),
    *(f"torch.distributed.{part}" for part in ("_shard", "_composable", "optim", "algorithms", "remote_device")),
)
# What some of the classes there are for, by a word of their name: they start something when they are made, or compile code.
_STARTS = ("Process", "Processing", "Executor", "Subprocess", "Thread", "Server", "Store", "Socket", "Launcher", "Iter", "Graph")
STARTS_SOMETHING = frozenset(_STARTS)
_LISTED = frozenset(("torch", "functorch", "torchgen", "caffe2", "numpy"))  # of these, what is not listed is refused

# Other packages' classes are taken for parts of a model, but for these packages.
NEVER: tuple[tuple[str, str], ...] = (
    ("pip setuptools pkg_resources distutils _distutils_hack wheel conda", "install packages"),
    ("IPython ipykernel jupyter_client jupyter_core notebook nbconvert nbformat ptpython bpython", "run code"),
    ("dill cloudpickle joblib pickle5 _pickle5 zodbpickle jsonpickle srsly pathos", "make functions, or load another pickle"),
    ("numba llvmlite cffi pycparser cython Cython pyximport pythran triton theano aesara pytensor tvm", "compile code"),
    ("jinja2 mako sympy numexpr asteval simpleeval lark nltk", "evaluate text"),
    ("psutil sh plumbum pexpect ptyprocess fabric execnet mpi4py ray dask celery gunicorn uvicorn", "start programs"),
    ("requests urllib3 httpx aiohttp paramiko boto3 botocore fsspec s3fs gcsfs websockets zmq twisted", "open connections"),
    ("pytest _pytest tox nox hypothesis", "run code"),
    ("tensorflow keras jax jaxlib flax onnx onnxruntime tensorrt", "are other frameworks"),
    ("win32api win32com win32process win32pipe pythoncom pywintypes gi dbus objc", "call the system"),
)
_NEVER = frozenset(name for names, _ in NEVER for name in names.split())

# A package hands on what it imports: mypackage.tools.Popen is subprocess's.
_HANDED_ON = """
    Popen Process Thread Timer ThreadPool ProcessPoolExecutor ThreadPoolExecutor InteractiveConsole InteractiveInterpreter
    Unpickler FunctionType LambdaType CodeType ModuleType MethodType SourceFileLoader SourcelessFileLoader ExtensionFileLoader
    PathFinder FileFinder FileIO BufferedWriter TextIOWrapper NamedTemporaryFile TemporaryDirectory ZipFile TarFile CDLL PyDLL
    WinDLL OleDLL LibraryLoader CFUNCTYPE PYFUNCTYPE FileHandler SMTP FTP HTTPConnection HTTPSConnection Bdb Pdb
"""
HANDED_ON = frozenset(_HANDED_ON.split())

# Modules of Python that `sys.stdlib_module_names` does not tell: those of other versions. The unpickler still understands
# Python 2's names too (`commands` is subprocess), by the tables that are used here.
_OTHER_MODULES = """
    distutils asynchat asyncore imp smtpd lib2to3 idlelib turtledemo cgi cgitb crypt mailcap msilib nis nntplib pipes spwd
    telnetlib dummy_threading _bootlocale tracemalloc
"""
_STANDARD = (*sys.stdlib_module_names, *_OTHER_MODULES.split(), *IMPORT_MAPPING, *IMPORT_MAPPING.values())
STANDARD = frozenset(name.partition(".")[0].lower() for name in _STANDARD) - {"__main__", "test"}  # test: see `judge`

_PLAIN = frozenset(f"{module}.{name}" for module, names, _ in PLAIN for name in names.split())
_CALLED = frozenset(f"{module}.{name}" for module, names, _ in CALLED for name in names.split())
_NAMED = frozenset(f"{module}.{name}" for module, names, _ in NAMED_ONLY for name in names.split() if name != "*")
_NAMED_ALL = frozenset(module for module, names, _ in NAMED_ONLY if names == "*")
_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
_WORDS = re.compile(r"[A-Z][a-z0-9]*")
_OWN = frozenset(("__main__", "__mp_main__", "__torch__"))  # the script itself, and TorchScript's classes
_LONGEST = 500


def today(module: str, name: str) -> tuple[str, str]:
    """A name of Python 2 as it is called today; others as they are."""
    return NAME_MAPPING.get((module, name)) or (IMPORT_MAPPING.get(module, module), name)


def judge(module: str, name: str, use: Use = "named") -> Judgement:
    """What it means that a stream names a class or function, makes an object of it, or calls it."""
    if len(module) + len(name) > _LONGEST or not _PATH.fullmatch(module) or not _PATH.fullmatch(name):
        return "refused"
    full = f"{module}.{name}"
    if full in _PLAIN:
        return "plain"
    if full in _NAMED or full.startswith(PART_OF) or (module in _NAMED_ALL and "." not in name and not name.startswith("_")):
        return "plain" if use == "named" and "__" not in name else "refused"
    if full in _CALLED:
        return "needs code"
    package = module.partition(".")[0]
    if _has_inner_name(module, name) or package in _NEVER or package.lower() in STANDARD:
        return "refused"
    if module.startswith("test."):  # Python's; its `test` itself is empty, so `test.Net` is somebody's test.py
        return "refused"
    if use == "called":
        return "refused"
    return _of_torch(module, name) if package in _LISTED else _of_another_package(name)


def _of_torch(module: str, name: str) -> Judgement:
    is_torch = any(module == package or module.startswith(f"{package}.") for package in TORCH_CLASSES)
    parts = name.split(".")
    odd = STARTS_SOMETHING.intersection(_WORDS.findall(name)) or HANDED_ON.intersection(parts)
    return "needs code" if is_torch and all(map(_is_class, parts)) and not odd else "refused"


def _of_another_package(name: str) -> Judgement:
    *outer, last = name.split(".")
    foreign = not all(map(_is_class, outer)) or HANDED_ON.intersection((*outer, last))
    return "refused" if foreign else "needs code"  # `package.os.system`: a module that the package imports


def _has_inner_name(module: str, name: str) -> bool:
    """Python's inner names are a way to everything: __globals__, __import__, __reduce__ …"""
    first, *rest = module.split(".")
    parts = (*rest, *name.split(".")) if first in _OWN else (first, *rest, *name.split("."))
    return any(part.startswith("__") and part.endswith("__") for part in parts)


def _is_class(part: str) -> bool:
    """Classes begin with a capital letter."""
    return part.lstrip("_")[:1].isupper()
