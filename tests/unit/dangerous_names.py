"""Names that public scanners of pickles call dangerous: picklescan 1.0.5 (its list of unsafe globals) and fickling 0.1.12."""

from __future__ import annotations

# Everything in these modules.
_MODULES = """
    __builtin__ __builtins__ _aix_support _ctypes _frozen_importlib _frozen_importlib_external _imp _operator _osx_support
    _pickle _posixsubprocess _pyrepl _signal _sqlite3 _thread aiohttp asyncio atexit bdb builtins cProfile cloudpickle code
    codeop commands compile compileall ctypes difflib dill distutils distutils.file_util doctest ensurepip eval exec filecmp
    fileinput ftplib functools gc glob http httplib idlelib imaplib importlib inspect joblib lib2to3 linecache logging marshal
    mmap multiprocessing nntplib nt numpy.distutils numpy.f2py numpy.testing._private.utils operator os pdb pexpect pickle pip
    pkgutil platform poplib posix profile pty py_compile pydoc requests requests.api runpy select selectors shelve shutil
    signal site smtplib socket socketserver sqlite3 ssl subprocess sys syslog tarfile telnetlib tempfile test threading timeit
    torch._dynamo torch._inductor torch.hub torch.jit trace types unittest urllib urllib.request urllib2 uuid venv webbrowser
    xmlrpc zipfile zipimport
"""

# These functions and classes.
_NAMES = """
    __builtin__:apply __builtin__:breakpoint __builtin__:compile __builtin__:eval __builtin__:exec __builtin__:getattr
    __builtin__:open _io:FileIO _io:open _operator:attrgetter _operator:itemgetter _operator:methodcaller builtins:apply
    builtins:breakpoint builtins:compile builtins:eval builtins:exec builtins:getattr builtins:open
    cloudpickle.cloudpickle:_builtin_type cloudpickle.cloudpickle:_function_setstate cloudpickle.cloudpickle:_make_cell
    cloudpickle.cloudpickle:_make_empty_cell cloudpickle.cloudpickle:_make_function cloudpickle.cloudpickle:subimport
    code:InteractiveInterpreter.runcode doctest:debug_script ensurepip:_run_pip functools:partial
    idlelib.autocomplete:AutoComplete.fetch_completions idlelib.autocomplete:AutoComplete.get_entity
    idlelib.calltip:Calltip.fetch_tip idlelib.calltip:get_entity idlelib.debugobj:ObjectTreeItem.SetText
    idlelib.pyshell:ModifiedInterpreter.runcode idlelib.pyshell:ModifiedInterpreter.runcommand idlelib.run:Executive.runcode
    imaplib:IMAP4_stream io:FileIO io:open lib2to3.pgen2.grammar:Grammar.loads lib2to3.pgen2.pgen:ParserGenerator.make_label
    logging:FileHandler numpy.testing._private.utils:runstring operator:attrgetter operator:itemgetter operator:methodcaller
    pkgutil:resolve_name torch._dynamo.guards:GuardBuilder.get torch._inductor.codecache:compile_file
    torch.distributed.elastic.rendezvous.api:basichandlers
    torch.fx.experimental.symbolic_shapes:ShapeEnv.evaluate_guards_expression torch.jit.unsupported_tensor_ops:execWrapper
    torch.serialization:load torch.storage:_load_from_bytes torch.utils._config_module:ConfigModule
    torch.utils._config_module:ConfigModule.load_config torch.utils.bottleneck.__main__:run_autograd_prof
    torch.utils.bottleneck.__main__:run_cprofile torch.utils.collect_env:run
    torch.utils.data.datapipes.utils.decoder:basichandlers torch:compile torch:load trace:Trace.run trace:Trace.runctx
    types:CodeType
"""

MODULES, NAMES = _MODULES.split(), _NAMES.split()
