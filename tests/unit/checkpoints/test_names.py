"""Names in a pickle: what is harmless, what needs code, what no checkpoint needs."""

from __future__ import annotations

import _compat_pickle
import enum
import importlib
import sys

import torch
from every_case import every_case
from torch._weights_only_unpickler import _get_allowed_globals

from holdfast.checkpoints.harmless import CALLED, NAMED_ONLY, PLAIN, STORAGES
from holdfast.checkpoints.names import NEVER, STANDARD, Use, judge, today


def split(full: str) -> tuple[str, str]:
    module, _, name = full.rpartition(".")
    return module, name


def test_what_torch_allows_by_itself_is_plain() -> None:
    newer = {"torch.bit"}
    for full in _get_allowed_globals():
        assert judge(*split(full), "called") == "plain" or full in newer, full


@every_case(
    "full",
    [
        *("os.system", "posix.system", "nt.system", "subprocess.Popen", "subprocess.run", "builtins.eval", "builtins.exec"),
        *("builtins.getattr", "builtins.__import__", "builtins.compile", "builtins.open", "builtins.map", "builtins.setattr"),
        *("builtins.vars", "builtins.globals", "builtins.breakpoint", "builtins.input", "builtins.help", "builtins.print"),
        *("runpy.run_path", "importlib.import_module", "socket.socket", "shutil.rmtree", "webbrowser.open", "ctypes.CDLL"),
        *(
            "pickle.loads",
            "_pickle.loads",
            "marshal.loads",
            "shelve.open",
            "types.FunctionType",
            "types.CodeType",
            "code.interact",
        ),
        *(
            "timeit.timeit",
            "cProfile.run",
            "profile.run",
            "trace.Trace",
            "pdb.run",
            "bdb.Bdb",
            "doctest.debug_script",
            "pty.spawn",
        ),
        *(
            "pydoc.pipepager",
            "pydoc.locate",
            "ensurepip._run_pip",
            "asyncio.unix_events._UnixSubprocessTransport",
            "platform.popen",
        ),
        *("multiprocessing.Process", "threading.Thread", "concurrent.futures.ProcessPoolExecutor", "sched.scheduler"),
        *("functools.reduce", "functools.partialmethod", "operator.attrgetter", "operator.methodcaller", "operator.call"),
        *("itertools.starmap", "contextlib.ExitStack", "atexit.register", "signal.signal", "weakref.finalize", "copyreg.pickle"),
        *(
            "tempfile.NamedTemporaryFile",
            "logging.FileHandler",
            "logging.config.listen",
            "urllib.request.urlopen",
            "http.server.x",
        ),
        *("lib2to3.pgen2.grammar.Grammar", "idlelib.run.Executive", "distutils.spawn.spawn", "imp.load_source", "site.main"),
        *("test.support.script_helper.assert_python_ok", "sqlite3.connect", "zipimport.zipimporter", "codecs.open", "io.FileIO"),
        *("torch.load", "torch.serialization.load", "torch.hub.load", "torch.jit.load", "torch.jit._script.script", "torch.save"),
        *("torch.utils.collect_env.run", "torch.utils.bottleneck.__main__.run_cprofile", "torch.utils.cpp_extension.load"),
        *("torch.utils._config_module.ConfigModule.load_config", "torch._dynamo.guards.GuardBuilder", "torch.fx.GraphModule"),
        *("torch.fx.graph_module.reduce_graph_module", "torch.distributed.run.main", "torch.distributed.rpc.rpc_sync"),
        *("torch.distributed.elastic.multiprocessing.subprocess_handler.SubprocessHandler", "torch.multiprocessing.spawn"),
        *("torch.distributed.checkpoint.utils.os", "torch.nn.modules.module.functools", "torch.optim.optimizer.partial"),
        *("torch.ao.quantization.fx.prepare.GraphModule", "torch.ao.quantization.fx.prepare.Anything", "torch.nn.x.GraphModule"),
        *("torch.utils.data.dataloader._MultiProcessingDataLoaderIter", "torch.distributed.TCPStore"),
        *("torch.package.PackageImporter", "torch.classes.load_library", "torch.ops.load_library", "torch.ops.aten.add"),
        *("numpy.load", "numpy.fromfile", "numpy.memmap", "numpy.testing._private.utils.runstring", "numpy.f2py.compile"),
        *(
            "numpy.core._ufunc_reconstruct",
            "numpy.lib.npyio.load",
            "numpy.vectorize",
            "numpy.distutils.exec_command.exec_command",
        ),
        *("pip.main", "setuptools.sandbox.run_setup", "dill._dill._create_function", "cloudpickle.cloudpickle._make_function"),
        *("sympy.Add", "psutil.Popen", "jinja2.Template", "IPython.terminal.embed.InteractiveShellEmbed", "fsspec.open"),
        *("mypackage.Popen", "mypackage.tools.FunctionType", "__main__.__builtins__", "mypackage.__loader__", "OS.system"),
    ],
)
def test_what_no_checkpoint_needs_is_refused_already_when_it_is_named(full: str) -> None:
    uses: tuple[Use, ...] = ("named", "made", "called")
    assert {judge(*split(full), use) for use in uses} == {"refused"}


@every_case(
    "full",
    [
        *("torch.nn.modules.linear.Linear", "torch.nn.modules.container.Sequential", "torch.optim.adamw.AdamW"),
        *("torch.optim.lr_scheduler.StepLR", "torch.amp.grad_scaler.GradScaler", "torch.utils.data.sampler.RandomSampler"),
        *(
            "torch.distributed.tensor.DTensor",
            "torch.distributed.tensor.placement_types.Shard",
            "torch.ao.quantization.observer.MinMax",
        ),
        *("torch.distributed.checkpoint.metadata.Metadata", "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING"),
        *("torch.distributed.fsdp.api.ShardingStrategy", "torch.nn.parallel.distributed.DistributedDataParallel"),
        *("torch.utils.hooks.RemovableHandle", "ultralytics.nn.tasks.DetectionModel", "models.yolo.Model", "__main__.Net"),
        *("omegaconf.dictconfig.DictConfig", "transformers.training_args.TrainingArguments", "__torch__.torch.nn.Linear"),
        *("lightning.fabric.utilities.data.AttributeDict", "mmengine.logging.history_buffer.HistoryBuffer", "test.Net"),
        *("pandas.core.frame.DataFrame", "models.common._Private", "net.GaussianProcess"),
    ],
)
def test_classes_of_models_need_code_and_are_no_alarm_unless_they_are_called(full: str) -> None:
    assert {judge(*split(full), "named"), judge(*split(full), "made")} == {"needs code"}
    assert judge(*split(full), "called") == ("needs code" if full in LISTED else "refused")


LISTED = {f"{module}.{name}" for module, names, _ in CALLED for name in names.split()}


def test_every_enumeration_that_may_be_called_is_one() -> None:
    """A call of an enumeration looks a value up; a class that was replaced by another kind must leave the list."""
    seen = 0
    for module, names, reason in CALLED:
        if "enumeration" in reason and module.startswith("torch."):
            for name in names.split():
                found = getattr(importlib.import_module(module), name, None)
                seen += found is not None
                assert found is None or issubclass(found, enum.Enum), name
    assert seen > 10


def test_a_function_of_another_package_may_be_named_and_not_called() -> None:
    assert judge("models.common", "autopad") == "needs code"
    assert judge("models.common", "HistoryBuffer.mean") == "needs code"
    assert judge("models.common", "conv_block", "made") == "needs code"  # a class with a small letter
    assert judge("models.common", "autopad", "called") == "refused"
    assert judge("models.common", "HistoryBuffer.mean", "called") == "refused"


def test_a_function_of_a_layer_may_be_named_and_not_called() -> None:
    for full in (
        "torch.nn.functional.relu",
        "torch._C._nn.gelu",
        "math.sqrt",
        "torch._C._VariableFunctionsClass.relu",
        "builtins.type",
    ):
        module, name = full.rsplit(".", 1)
        assert judge(module, name) == "plain" and judge(module, name, "called") == "refused"
    assert judge("torch._C", "_VariableFunctionsClass.relu") == "plain"
    assert judge("torch.nn.functional", "importlib.import_module") == "refused"
    assert judge("torch.nn.functional", "_in_projection") == "refused"
    assert judge("torch._C", "TensorBase.__class__") == "refused"


@every_case(
    ("module", "name"),
    [
        *[("", ""), ("a", ""), ("", "a"), ("a..b", "C"), ("a", "B..C"), (".a", "B"), ("a b", "C"), ("a", "B\n"), ("a/b", "C")],
        *[
            ("a", "B C"),
            ("\u043es", "system"),
            ("os\u200b", "system"),
            ("ｏｓ", "system"),
            ("a" * 600, "B"),
            ("a", "B(1)"),
            ("1a", "B"),
        ],
        *[
            ("mypackage", "os.system"),
            ("mypackage", "tools.Net"),
            ("mypackage", "Net.__init__.__globals__"),
            ("a.__main__", "Net"),
        ],
    ],
)
def test_names_that_no_pickler_writes_are_refused(module: str, name: str) -> None:
    assert judge(module, name) == "refused"


def test_names_of_python_2_are_judged_as_what_the_unpickler_makes_of_them() -> None:
    assert today("__builtin__", "eval") == ("builtins", "eval") and today("__builtin__", "xrange") == ("builtins", "range")
    assert today("commands", "getoutput") == ("subprocess", "getoutput")
    for module in _compat_pickle.IMPORT_MAPPING:
        assert judge(module, "Anything") == "refused" and judge(*today(module, "Anything")) == "refused", module
    for pair in _compat_pickle.NAME_MAPPING:
        assert judge(*today(*pair), "called") in ("refused", "plain"), pair


def test_every_module_of_python_is_refused_but_for_the_listed_names() -> None:
    for module in sys.stdlib_module_names - {"__main__", "test"}:
        assert judge(module, "Anything", "made") == "refused" or module == "math"
        assert judge(f"{module}.inner", "Anything", "made") == "refused"
    assert {"os", "builtins", "subprocess", "distutils", "imp"} <= STANDARD


def test_every_listed_name_has_a_reason_and_exists_or_once_did() -> None:
    assert all(reason for *_, reason in (*PLAIN, *NAMED_ONLY, *CALLED)) and all(reason for _, reason in NEVER)
    assert all(judge(module, name, "called") == "plain" for module, names, _ in PLAIN for name in names.split())
    assert all(judge(*split(full), "called") == "needs code" for full in LISTED)
    for name, dtype in STORAGES.items():
        if hasattr(torch, name) and "typed" not in name.lower():
            assert str(getattr(torch, name)().dtype) == f"torch.{dtype}"


def test_nothing_that_is_listed_is_callable_into_trouble_by_a_dot() -> None:
    for module, names, _ in PLAIN:
        for name in names.split():
            assert judge(module, f"{name}.__init__") == "refused" and judge(module, f"{name}.from_file", "called") == "refused"
