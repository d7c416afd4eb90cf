"""Texts of packages that do not match each other or the system."""

from __future__ import annotations

from holdfast.diagnosis.known_texts.known_text import FOLLOWS, KnownText, Pattern

_INSTALLED = r".{0,300}(?:site-packages|dist-packages|[/\\]lib[/\\]python|python[^/\\]*[/\\]lib[/\\])"  # a path of Python's own

OF_INSTALL = (
    KnownText(
        "torchvision-does-not-fit",
        (
            "operator torchvision::nms does not exist",
            "Couldn't load custom C++ ops",
            "No such operator torchvision::nms",
            "Failed to load image Python extension",
        ),
        "broken-install",
        "torchvision (or torchaudio) was built for a different version of PyTorch.",
        "Install both together from the same source, with matching versions: `pip install --force-reinstall torch torchvision`.",
    ),
    KnownText(
        "numpy-2",
        (
            "compiled using NumPy 1.x cannot be run in NumPy 2",
            "_ARRAY_API not found",
            "numpy.dtype size changed, may indicate binary incompatibility",
            "numpy.core.multiarray failed to import",
            "was removed in the NumPy 2.0 release",
            "module 'numpy' has no attribute",
            "RuntimeError: Numpy is not available",
        ),
        "broken-install",
        "A package was built for a different major version of NumPy.",
        "Update that package; until then: `pip install 'numpy<2'`.",
    ),
    KnownText(
        "glibc-too-old",
        ("version 'GLIBC_*' not found", "version 'GLIBCXX_*' not found", "version 'CXXABI_*' not found"),
        "broken-install",
        "The package was built on a newer system than this one.",
        "GLIBCXX: `conda install -c conda-forge libstdcxx-ng`, first on LD_LIBRARY_PATH. GLIBC itself cannot be replaced: use"
        " an older build of the package, or a container with a newer Linux.",
    ),
    KnownText(
        "undefined-symbol",
        ("undefined symbol: ",),
        "broken-install",
        "A compiled package was built for a different version of PyTorch, CUDA or Python.",
        "Build or install it again for this PyTorch: `pip install --no-cache-dir --force-reinstall PACKAGE`.",
    ),
    KnownText(
        "library-missing",
        ("libGL.so.1: cannot open shared object file", "cannot open shared object file: No such file or directory"),
        "broken-install",
        "A system library is missing.",
        "libGL (OpenCV): install opencv-python-headless instead. Others: install the system package with that file.",
    ),
    KnownText(
        "two-openmps",
        ("OMP: Error #15", "is incompatible with libgomp", "Initializing libiomp5"),
        "broken-install",
        "Two copies of the OpenMP library were loaded, by packages from different sources.",
        "Install NumPy and PyTorch from one source (pip or conda, not both); MKL_THREADING_LAYER=GNU is a workaround.",
    ),
    KnownText(
        "no-triton",
        ("Cannot find a working triton installation", "TritonMissing", "No module named 'triton'"),
        "compile-trouble",
        "torch.compile needs Triton for this device, but Triton is missing or does not work.",
        "`pip install triton` (Linux; triton-windows on Windows), or run without torch.compile: the results are the same, only"
        " slower.",
    ),
    KnownText(
        "no-compiler",
        (
            "Failed to find C compiler",
            "fatal error: Python.h: No such file",
            "InvalidCxxCompiler",
            "No working C++ compiler found",
        ),
        "compile-trouble",
        "Code is being compiled, but there is no C compiler, or the Python headers are missing.",
        "Install gcc, g++ and the python3-dev package, or set CC; or run without torch.compile.",
    ),
    KnownText(
        "module-not-found",
        ("ModuleNotFoundError: No module named", "ImportError: No module named"),
        "broken-install",
        "A package is not installed in the Python that runs the script.",
        "`python -m pip install PACKAGE` with the python that runs the training (`which python`).",
    ),
    KnownText(
        "cannot-import-own-name",
        (Pattern(rf"ImportError: cannot import name .{{0,200}}\((?!{_INSTALLED})[^()]{{1,300}}\.py\)", ("import",)),),
        "script-error",
        "One of your own files has no such name: it is misspelt or was moved, or two files import each other.",
        "Check the file that the message names. If it has the name of a package (random.py, token.py), rename it.",
    ),
    KnownText(
        "cannot-import-name",
        ("ImportError: cannot import name", "has no attribute '*' (most likely due to a circular import)"),
        "broken-install",
        "Two packages have incompatible versions, or one of your files has the name of a package.",
        "Update the package that the message names; if the file is yours (random.py, token.py), rename it.",
    ),
    KnownText(
        "half-on-the-cpu",
        ("not implemented for 'Half'", "not implemented for 'BFloat16'", "could not create a primitive descriptor"),
        "shape-mismatch",
        "This operation does not exist in half precision on this device, usually because the model is on the CPU.",
        "Move the model to the GPU before calling .half() or autocast, or use float32 on the CPU.",
    ),
    KnownText(
        "bitsandbytes-without-cuda",
        ("CUDA Setup failed despite GPU being available", "compiled without GPU support"),
        "broken-install",
        "bitsandbytes cannot find the CUDA version that it was built for.",
        "Update it (`pip install -U bitsandbytes`), and remove other CUDA folders from LD_LIBRARY_PATH.",
    ),
    KnownText(
        "segmentation-fault",
        (
            "Segmentation fault",
            "exit code 139",
            "exit status 139",
            "exited with code 139",
            Pattern(r"exitcode\s*: -11\b", ("exitcode",)),
            "Signal 11 (SIGSEGV)",
            "died with <Signals.SIGSEGV",
        ),
        "process-died",
        "Compiled code crashed: an incompatible library, a GPU kernel, or a stack that is too small.",
        "`python -X faulthandler train.py` shows the Python line. Then update the library it is in; try num_workers=0 to"
        " see whether a worker crashes.",
        FOLLOWS,
    ),
)
