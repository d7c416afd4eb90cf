"""Texts of `torch.compile`."""

from __future__ import annotations

from holdfast.diagnosis.known_texts.known_text import NOTE, WARNING, KnownText

OF_COMPILING = (
    KnownText(
        "recompile-limit",
        (
            "torch._dynamo hit config.cache_size_limit",
            "torch._dynamo hit config.recompile_limit",
            "hit config.accumulated_cache_size_limit",
            "hit config.accumulated_recompile_limit",
            "FailOnRecompileLimitHit",
        ),
        "recompilation",
        "torch.compile compiled a function too often and gave up: the function now runs uncompiled.",
        "Make the shapes constant (drop_last=True, padding), or torch.compile(model, dynamic=True). TORCH_LOGS=recompiles"
        " shows what changed.",
        WARNING,
    ),
    KnownText(
        "skipping-cudagraphs",
        ("skipping cudagraphs due to", "skipping cudagraphs"),
        "compile-trouble",
        "A compiled part runs without CUDA graphs: the results are correct, only the speed-up of mode='reduce-overhead' is lost.",
        "No action needed. The reason is in the message (mutated inputs, CPU tensors, dynamic shapes); mode='default' uses"
        " no CUDA graphs.",
        NOTE,
    ),
    KnownText(
        "pthread-join",
        ("pthread_join failed",),
        "compile-trouble",
        "The compiler's worker processes and the loader's interfered with each other, usually at the end of the process.",
        "Set TORCHINDUCTOR_COMPILE_THREADS=1, or start loader workers with multiprocessing_context='forkserver'.",
    ),
    KnownText(
        "compiler-failed",
        (
            "BackendCompilerFailed",
            "InductorError",
            "LoweringException",
            "torch._dynamo.exc.InternalTorchDynamoError",
            "CppCompileError",
        ),
        "compile-trouble",
        "torch.compile could not compile a part of the model.",
        "Run without torch.compile, or set torch._dynamo.config.suppress_errors = True so that this part runs uncompiled.",
    ),
    KnownText(
        "graph-break",
        ("torch._dynamo.exc.Unsupported", "Graph break in user code", "Graph break from"),
        "compile-trouble",
        "torch.compile cannot capture some code in a graph. Only with fullgraph=True is this an error; else the rest is"
        " compiled in pieces.",
        "Remove fullgraph=True, or move the named line (a print, .item(), a branch on data) out of the compiled part.",
        WARNING,
    ),
    KnownText(
        "cudagraph-overwritten",
        ("output of CUDAGraphs that has been overwritten",),
        "compile-trouble",
        "With CUDA graphs the outputs of one call are overwritten by the next, and an old output is still in use.",
        "Call torch.compiler.cudagraph_mark_step_begin() at the start of each step, or .clone() what is kept; or mode='default'.",
    ),
    KnownText(
        "too-few-multiprocessors",
        ("Not enough SMs to use max_autotune_gemm mode",),
        "compile-trouble",
        "The GPU has too few multiprocessors for one of the searches of max-autotune, which is skipped.",
        "No action needed.",
        NOTE,
    ),
)
