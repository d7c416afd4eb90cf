"""Texts of several ranks: collectives that wait, ranks that died, connections that never came up."""

from __future__ import annotations

from holdfast.diagnosis.known_texts.known_text import FOLLOWS, WARNING, KnownText

OF_RANKS = (
    KnownText(
        "collectives-differ",
        (
            "Detected mismatch between collectives on ranks",
            "failed to pass monitoredBarrier",
            "Received data size doesn't match expected size",
            "op.preamble.length <= op.nbytes",
        ),
        "collective-stall",
        "Ranks called different collectives, or in a different order.",
        "All ranks must make the same calls: no `if rank == 0:` around an all_reduce, barrier, backward or forward.",
    ),
    KnownText(
        "nccl-timeout",
        (
            "Watchdog caught collective operation timeout",
            "Some NCCL operations have failed or timed out",
            "collective operation timeout: WorkNCCL",
            "watchdog thread terminated with exception",
            "ProcessGroupNCCL's watchdog got stuck for",
            "Timed out waiting * for recv operation to complete",
            "NCCL timeout",
        ),
        "collective-stall",
        "A rank waited for the others in a collective until the time limit: another rank died, hangs, or made a different call.",
        "Look at the other ranks first: the one without this message, or with an earlier error, is the cause."
        " TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_DISTRIBUTED_DEBUG=DETAIL show where each rank is.",
        FOLLOWS,
    ),
    KnownText(
        "peer-is-gone",
        (
            "Connection closed by remote peer",
            "Connection closed by peer",
            "ncclRemoteError",
            "remote process exited or there was a network error",
            "Connection reset by peer",
            "Socket closed by remote peer",
        ),
        "collective-stall",
        "Another rank died: this message is only a consequence.",
        "Look for the first error in the logs of the other ranks (torchrun --redirects 3 --log-dir logs keeps one log each).",
        FOLLOWS,
    ),
    KnownText(
        "nccl-system-error",
        ("NCCL * unhandled system error", "ncclSystemError", "Call to connect returned Connection refused", "No route to host"),
        "distributed-setup",
        "NCCL could not reach another rank, or could not create shared memory.",
        "NCCL_DEBUG=INFO shows what fails. Several network interfaces: NCCL_SOCKET_IFNAME=eth0. In a container: --shm-size=8g, or"
        " --ipc=host.",
    ),
    KnownText(
        "two-ranks-one-gpu",
        ("Duplicate GPU detected", "ncclInvalidUsage"),
        "distributed-setup",
        "Two ranks use the same GPU.",
        "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything else, and start no more ranks than there"
        " are GPUs.",
    ),
    KnownText(
        "nccl-cuda-error",
        ("NCCL * unhandled cuda error", "ncclUnhandledCudaError", "ncclInternalError"),
        "distributed-setup",
        "CUDA failed inside NCCL: a GPU out of memory, GPUs that cannot reach each other, or a wrong driver.",
        "NCCL_DEBUG=INFO shows the call. Try NCCL_P2P_DISABLE=1 once: if that helps, the link between the GPUs is bad.",
    ),
    KnownText(
        "address-in-use",
        (
            "Address already in use",
            "EADDRINUSE",
            "errno: 98",
            "The server socket has failed to listen on any local network address",
        ),
        "distributed-setup",
        "The rendezvous port is in use, usually by an earlier run that is still alive.",
        "Stop that run (`ss -ltnp | grep 29500` names it), or use another port: torchrun --master-port 29501, or --standalone.",
    ),
    KnownText(
        "no-rendezvous",
        (
            "RendezvousTimeoutError",
            "RendezvousConnectionError",
            "RendezvousClosedError",
            "The client socket has timed out after",
            "DistStoreError: Timed out",
            "timed out while waiting for clients",
            "Timed out after * waiting for clients",
            "StoreTimeoutError",
            "wait timeout after *, keys:",
        ),
        "distributed-setup",
        "Not all ranks reached the rendezvous in time: one never started, died while starting, or cannot reach the address.",
        "Start the same command on every node with the same --nnodes, --rdzv-id and --rdzv-endpoint; check that the port is"
        " open between them.",
    ),
    KnownText(
        "gloo-cannot-connect",
        (
            "connectFullMesh failed",
            "gloo * Connect timeout",
            "Unable to find address for",
            "makeDeviceForHostname",
            "makeDeviceForInterface",
        ),
        "distributed-setup",
        "Gloo found no network address under which the ranks reach each other.",
        "GLOO_SOCKET_IFNAME=eth0 (or lo on one machine) sets the interface; /etc/hosts must contain the machine's own name.",
    ),
    KnownText(
        "not-started-by-torchrun",
        (
            "Default process group has not been initialized",
            "environment variable RANK expected, but not set",
            "environment variable MASTER_ADDR expected",
            "environment variable WORLD_SIZE expected",
        ),
        "distributed-setup",
        "The script expects to run under a distributed launcher.",
        "Start it with `torchrun --nproc-per-node N train.py`, and call init_process_group() first.",
    ),
    KnownText(
        "backend-without-device",
        ("No backend type associated with device type", "Tensors must be CUDA and dense"),
        "distributed-setup",
        "A collective was called on a tensor whose device the backend does not support: NCCL takes GPU tensors only.",
        "Move the tensor to the GPU first, or init_process_group('cpu:gloo,cuda:nccl').",
    ),
    KnownText(
        "ddp-unused-parameters",
        ("Expected to have finished reduction in the prior iteration before starting a new one",),
        "parameters-not-trained",
        "Under DDP some parameters took no part in the loss, so they got no gradients.",
        "Remove them from the model or use them in the loss; find_unused_parameters=True allows it at a cost."
        " TORCH_DISTRIBUTED_DEBUG=DETAIL names them.",
    ),
    KnownText(
        "ddp-ready-twice",
        ("Expected to mark a variable ready only once", "has been marked as ready twice"),
        "graph-error",
        "Under DDP a parameter got its gradient twice in one backward: a shared part, activation checkpointing, or two forwards.",
        "Use checkpoint(..., use_reentrant=False), or DDP(..., static_graph=True); one forward of the DDP model for each"
        " backward.",
    ),
    KnownText(
        "ddp-looks-for-nothing",
        ("did not find any unused parameters in the forward pass",),
        "slow-step",
        "find_unused_parameters=True searches the graph in every step, but all parameters are used.",
        "Remove find_unused_parameters.",
        WARNING,
    ),
    KnownText(
        "ranks-differ",
        (
            "DDP expects same model across all ranks",
            "appears not to match sizes of the same param in process 0",
            "appears not to match strides",
        ),
        "rank-divergence",
        "The ranks built different models.",
        "Build the model from the same settings and the same checkpoint on every rank; print the number of parameters on each.",
    ),
    KnownText(
        "fsdp-mixed-parameters",
        ("Must flatten tensors with uniform", "FSDP expects uniform", "FSDP reduce-scatter expects uniform"),
        "distributed-setup",
        "FSDP groups parameters that differ in dtype, or of which only some are trained.",
        "Cast the model to one dtype before wrapping, use use_orig_params=True for frozen parts, or fully_shard (FSDP2).",
    ),
    KnownText(
        "a-rank-failed",
        (
            "ChildFailedError",
            "Sending process * closing signal SIGTERM",
            "ProcessExitedException",
            "ProcessRaisedException",
            "failed (exitcode: *) local_rank",
        ),
        "process-died",
        "One rank failed, and the launcher stopped the others.",
        "Read the first traceback further up, of the rank named as root cause. `@record` from"
        " torch.distributed.elastic.multiprocessing.errors on main() includes it in this message.",
        FOLLOWS,
    ),
    KnownText(
        "broken-pipe",
        ("BrokenPipeError", "[Errno 32] Broken pipe", "Broken pipe"),
        "process-died",
        "The process at the other end of a pipe or connection has exited.",
        "Look for the error of the other process: a loader worker, another rank, or a `| head` that ended.",
        FOLLOWS,
    ),
)
