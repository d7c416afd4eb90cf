"""Texts of CUDA: builds and drivers that do not match, kernels and libraries that fail."""

from __future__ import annotations

from holdfast.diagnosis.known_texts.known_text import FOLLOWS, WARNING, KnownText, Pattern

OF_CUDA = (
    KnownText(
        "no-kernel-image",
        (
            "no kernel image is available for execution on the device",
            "not compatible with the current PyTorch installation",
            "CUDA error: invalid device function",
            "HIP error: invalid device function",
        ),
        "cuda-build-mismatch",
        "This PyTorch build does not support this GPU: the GPU is newer than the build, or much older.",
        "Install a PyTorch build for a CUDA version that supports the GPU (the selector on pytorch.org/get-started). Compare"
        " torch.cuda.get_arch_list() with torch.cuda.get_device_capability().",
    ),
    KnownText(
        "driver-too-old",
        (
            "NVIDIA driver on your system is too old",
            "CUDA driver version is insufficient for CUDA runtime version",
            "forward compatibility was attempted on non supported HW",
            "unsupported display driver / cuda driver combination",
            "PTX was compiled with an unsupported toolchain",
        ),
        "cuda-build-mismatch",
        "The NVIDIA driver is older than the CUDA version that this PyTorch was built with.",
        "Update the driver (nvidia-smi shows the newest CUDA version that it supports), or install a PyTorch built for an"
        " older CUDA.",
    ),
    KnownText(
        "driver-just-updated",
        ("Driver/library version mismatch",),
        "cuda-build-mismatch",
        "The driver was updated, but the old one is still loaded.",
        "Restart the machine, or reload the nvidia kernel modules.",
    ),
    KnownText(
        "no-gpu-seen",
        (
            "No CUDA GPUs are available",
            "Torch not compiled with CUDA enabled",
            "Found no NVIDIA driver on your system",
            "no CUDA-capable device is detected",
            "CUDA unknown error",
            "couldn't communicate with the NVIDIA driver",
            "CUDA initialization: *",
        ),
        "computing-on-cpu",
        "PyTorch sees no GPU: it is a CPU build, there is no driver, or the GPUs are hidden from this process.",
        'Check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and `python -c "import torch; print(torch.version.cuda)"` (None is a CPU'
        " build). In a container, start it with --gpus all.",
    ),
    KnownText(
        "no-such-device",
        ("CUDA error: invalid device ordinal", "Invalid device id", "invalid device ordinal"),
        "computing-on-cpu",
        "The script uses a GPU number that does not exist here.",
        "Numbers start at 0 and count only the GPUs in CUDA_VISIBLE_DEVICES. With torchrun use LOCAL_RANK, not RANK.",
    ),
    KnownText(
        "device-is-busy",
        ("all CUDA-capable devices are busy or unavailable",),
        "computing-on-cpu",
        "Another process uses the GPU, which is in exclusive mode.",
        "Stop that process (nvidia-smi lists it), or set the compute mode to default: `nvidia-smi -c 0`.",
    ),
    KnownText(
        "embedding-index-assert",
        (
            "srcIndex < srcSelectDimSize",
            "Assertion * index >= -sizes[i] && index < sizes[i]",
            "index && index < sizes[i]",
            "ind >= 0 && ind < ind_dim_size",
        ),
        "token-out-of-range",
        "An index is out of range: usually a token id beyond the rows of the embedding.",
        "Compare the largest id with num_embeddings: `batch.max()`; call model.resize_token_embeddings(len(tokenizer)).",
    ),
    KnownText(
        "label-assert",
        ("t >= 0 && t < n_classes", "cur_target >= 0 && cur_target < n_classes", "cur_target < n_classes"),
        "token-out-of-range",
        "A label is negative or not smaller than the number of classes of the model.",
        "Labels must be 0 … classes − 1: check `labels.min()` and `labels.max()`, and set ignore_index for ignored ones.",
    ),
    KnownText(
        "probability-assert",
        ("input_val >= zero && input_val <= one", "all elements of input should be between 0 and 1"),
        "non-finite-loss",
        "The input of binary cross entropy is not a probability: NaN, or logits without a sigmoid.",
        "Use binary_cross_entropy_with_logits on the raw outputs; if they are NaN, find where NaN comes from: `holdfast run"
        " --policy guard`.",
    ),
    KnownText(
        "device-side-assert",
        ("device-side assert triggered",),
        "device-side-assert",
        "A check inside a GPU kernel failed, usually an index or a label out of range. The line in the traceback is rarely"
        " the cause.",
        "Look for an `Assertion … failed` above, run one batch on the CPU (the error is clear there), or with"
        " CUDA_LAUNCH_BLOCKING=1.",
        FOLLOWS,
    ),
    KnownText(
        "illegal-memory-access",
        (
            "an illegal memory access was encountered",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "CUDA error: misaligned address",
            "unspecified launch failure",
            "Memory access fault by GPU",
        ),
        "device-side-assert",
        "A GPU kernel accessed memory out of bounds: an index out of range, or a bug in a kernel (your own, flash"
        " attention, compiled).",
        "Run with CUDA_LAUNCH_BLOCKING=1 to see the real line; try without torch.compile and without custom kernels; then"
        " compute-sanitizer.",
    ),
    KnownText(
        "cublas-not-initialised",
        ("CUBLAS_STATUS_NOT_INITIALIZED",),
        "device-side-assert",
        "cuBLAS could not start: GPU memory is full, or an earlier kernel failed (labels or indices out of range).",
        "Run one batch on the CPU: wrong labels and ids are named there. If it works, free GPU memory or use a smaller batch.",
    ),
    KnownText(
        "cublas-failed",
        (
            "CUBLAS_STATUS_EXECUTION_FAILED",
            "CUBLAS_STATUS_INTERNAL_ERROR",
            "CUBLAS_STATUS_INVALID_VALUE",
            "CUBLAS_STATUS_NOT_SUPPORTED",
        ),
        "device-side-assert",
        "A matrix product failed on the GPU: wrong shapes, indices out of range, or a different version of a CUDA library"
        " was loaded first.",
        "Run one batch on the CPU for a clear message. If it works there: unset LD_LIBRARY_PATH, and reinstall PyTorch.",
    ),
    KnownText(
        "cudnn-failed",
        (
            "CUDNN_STATUS_NOT_INITIALIZED",
            "CUDNN_STATUS_EXECUTION_FAILED",
            "CUDNN_STATUS_INTERNAL_ERROR",
            "CUDNN_STATUS_MAPPING_ERROR",
            "CUDNN_STATUS_BAD_PARAM",
            "CUDNN_STATUS_NOT_SUPPORTED",
            "cuDNN version incompatibility",
        ),
        "device-side-assert",
        "cuDNN failed: too little memory left, another cuDNN on the library path, or an earlier kernel that failed.",
        "Try a smaller batch to rule memory out; unset LD_LIBRARY_PATH so that PyTorch's own cuDNN is used;"
        " CUDA_LAUNCH_BLOCKING=1.",
    ),
    KnownText(
        "gpu-broken",
        (
            "uncorrectable ECC error encountered",
            "GPU has fallen off the bus",
            "GPU is lost",
            Pattern(r"NVRM: Xid .*?: (?:48|63|64|74|79|92|94|95),", ("nvrm",)),
            "CUDA_ERROR_ECC_UNCORRECTABLE",
        ),
        "device-side-assert",
        "The GPU reports a hardware fault.",
        "`nvidia-smi -q -d ECC` and the kernel log say more. Move the job to another GPU, and resume from the last clean"
        " checkpoint.",
    ),
    KnownText(
        "cuda-in-fork",
        ("Cannot re-initialize CUDA in forked subprocess",),
        "loader-stall",
        "CUDA was used before a worker was forked, and the worker uses it again.",
        "Keep tensors of the data set on the CPU and move batches in the loop, or start workers with"
        " multiprocessing_context='spawn'.",
    ),
    KnownText(
        "no-cuda-toolkit",
        (
            "CUDA_HOME environment variable is not set",
            "nvcc: command not found",
            "nvcc: not found",
            Pattern(r"No such file or directory: .{0,100}nvcc\b", ("nvcc",)),
        ),
        "cuda-build-mismatch",
        "A package is being compiled and needs the CUDA toolkit, which PyTorch does not include.",
        "Install the toolkit of the same CUDA version as torch.version.cuda and set CUDA_HOME, or install a prebuilt wheel"
        " of the package.",
    ),
    KnownText(
        "other-cuda-toolkit",
        ("mismatches the version that was used to compile",),
        "cuda-build-mismatch",
        "The CUDA toolkit on this machine has a different version than the CUDA of PyTorch.",
        "Point CUDA_HOME to a toolkit of version torch.version.cuda.",
    ),
    KnownText(
        "cuda-library-missing",
        (
            Pattern(
                r"lib(?:cudart|cublas|cudnn|nvrtc|nccl|cufft|cusparse|c10_cuda|torch_cuda|nvJitLink)[\w.-]*?\.so[\w.]*['\"]?:? "
                r"(?:cannot open|.{0,40}undefined symbol)",
                ("cannot", "undefined"),
            ),
            "Could not load library libcudnn",
            "Unable to load any of {libcudnn",
            "Could not load dynamic library 'libcud",
        ),
        "cuda-build-mismatch",
        "A CUDA library is missing, or its version differs from the one that this package was built with.",
        "Install PyTorch and the package for the same CUDA version, into a fresh environment; remove old CUDA folders from"
        " LD_LIBRARY_PATH.",
    ),
    KnownText(
        "old-card-for-attention",
        ("FlashAttention only supports Ampere GPUs or newer", "No available kernel. Aborting execution"),
        "cuda-build-mismatch",
        "This attention kernel does not run on this GPU, or not with this dtype and shape.",
        "Use attn_implementation='sdpa' (or the math backend), and float16 or bfloat16 inputs.",
    ),
    KnownText(
        "computes-in-full-precision",
        ("TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled",),
        "slow-step",
        "Matrix products in float32 do not use the GPU's tensor cores.",
        "torch.set_float32_matmul_precision('high'), or train in bfloat16.",
        WARNING,
    ),
)
