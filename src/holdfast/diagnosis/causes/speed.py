"""Why a training stops, hangs or crawls."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix

WORKER_DIED = Cause(
    code="worker-died",
    seen_by=("loader-stall", "hang"),
    signs=("workers-fewer",),
    ruled_out_by=("worker-stands", "locks-wait", "computes-on", "waits-in-script"),
    because="A loader worker died (out of memory, or a crash), and the loader waits for its batch.",
    likely=0.3,
    fixes=(
        Fix("run once without workers to see the error", setting="num_workers", op="set", value=0),
        Fix("give the loader a timeout, so that it raises an error", setting="timeout", op="set", value=120),
    ),
)
SHARED_MEMORY_FULL = Cause(
    code="shared-memory-full",
    seen_by=("loader-stall",),
    signs=("shared-memory-short",),
    ruled_out_by=("worker-waits", "waits-for-disk", "waits-for-network", "computes-on"),
    because="/dev/shm, through which workers pass batches, is full (64 MB by default in a container).",
    likely=0.2,
    fixes=(
        Fix("docker run --shm-size=8g, or --ipc=host"),
        Fix("prefetch fewer batches", setting="prefetch_factor", op="set", value=2),
    ),
)
SLOW_STORAGE = Cause(
    code="slow-storage",
    seen_by=("loader-stall", "slow-loading", "hang", "straggler"),
    signs=("waits-for-disk",),
    ruled_out_by=("locks-wait", "computes-on", "workers-fewer", "worker-waits", "waits-for-network"),
    because="Reading is slow: a network file system, a spinning disk, or millions of small files.",
    likely=0.2,
    fixes=(
        Fix("copy the data to a local disk first, or cache it", setting="cache", op="set", value="disk"),
        Fix("pack small files into large ones (tar shards, Parquet, LMDB)"),
    ),
)
WORKER_STUCK = Cause(
    code="worker-stuck",
    seen_by=("loader-stall",),
    needs=("worker-stands",),
    signs=("worker-waits", "computes-on"),
    ruled_out_by=("waits-for-disk", "waits-for-network", "locks-wait"),
    because="A loader worker is stuck in the data set's own code: a sleep, a retry, an endless loop, another process.",
    likely=0.3,
    fixes=(
        Fix("look at the line and sample in the finding, and add a timeout there"),
        Fix("load that sample alone: dataset[i] in a separate Python process"),
        Fix("give the loader a timeout, so that it raises an error", setting="timeout", op="set", value=120),
    ),
)
DATA_NOT_SENT = Cause(
    code="data-not-sent",
    seen_by=("loader-stall",),
    needs=("waits-for-network",),
    signs=("waits-for-network",),
    because="A loader worker waits for data over the network, and the server, proxy or connection pool does not answer.",
    likely=0.4,
    fixes=(
        Fix("set a timeout and retries for the request: by default most clients wait forever"),
        Fix("copy the data to a local disk first, or cache it", setting="cache", op="set", value="disk"),
    ),
)
DEADLOCK = Cause(
    code="deadlock",
    seen_by=("hang", "loader-stall", "collective-stall"),
    needs=("locks-wait",),
    signs=("locks-wait",),
    ruled_out_by=("computes-on", "workers-fewer", "worker-waits", "waits-for-disk", "waits-for-network"),
    because="A lock is never released: two threads wait for each other, or its holder is gone.",
    likely=0.4,
    fixes=(
        Fix("acquire locks in the same order everywhere, and never wait while holding a lock", ruled_out_by=("worker-stands",)),
        Fix("call acquire, join and get with a timeout, and log which thread waits", ruled_out_by=("worker-stands",)),
        Fix(
            "start workers in fresh processes: a worker that is forked while a thread holds a lock never gets the lock",
            setting="multiprocessing_context",
            op="set",
            value="forkserver",
            needs=("worker-stands",),
        ),
        Fix(
            "in workers: cv2.setNumThreads(0), TOKENIZERS_PARALLELISM=false, OMP_NUM_THREADS=1",
            needs=("worker-stands",),
        ),
    ),
)
STUCK_COMPUTE = Cause(
    code="stuck-compute",
    seen_by=("hang", "slow-step", "collective-stall"),
    needs=("computes-on",),
    signs=("computes-on",),
    ruled_out_by=("locks-wait", "waits-in-script", "workers-fewer"),
    because="A kernel or a Python loop does not end: a while loop without an exit, an autotuner, a faulty GPU.",
    likely=0.1,
    fixes=(Fix("look at the stacks (py-spy dump --native --pid PID), and at nvidia-smi and dmesg"),),
)
WAITS_IN_SCRIPT = Cause(
    code="waits-for-something",
    seen_by=("hang",),
    needs=("waits-in-script",),
    signs=("waits-in-script",),
    because="The script waits for something that never comes: a response, a file, a queue, a process, a long sleep.",
    likely=0.3,
    fixes=(Fix("look at the line in the finding, and add a timeout there"),),
)
COLLECTIVE_MISMATCH = Cause(
    code="collective-mismatch",
    seen_by=("collective-stall", "hang"),
    signs=("collectives-differ",),
    ruled_out_by=("worker-stands", "locks-wait", "computes-on", "waits-in-script", "workers-fewer", "packets-lost"),
    because="Ranks call different collectives: one has an extra batch, takes another branch, or saves alone.",
    likely=0.3,
    fixes=(
        Fix("give all ranks the same number of batches", setting="drop_last", op="set", value=True),
        Fix("call no all_reduce, barrier or forward inside `if rank == 0:`; TORCH_DISTRIBUTED_DEBUG=DETAIL names the mismatch"),
    ),
)
DEAD_RANK = Cause(
    code="dead-rank",
    seen_by=("collective-stall", "hang"),
    signs=("rank-is-gone",),
    ruled_out_by=("worker-stands", "locks-wait", "computes-on", "waits-in-script", "workers-fewer", "packets-lost"),
    because="One rank died or ran out of memory, and the others wait for it until their timeout.",
    likely=0.3,
    fixes=(
        Fix("read the log of the rank without a timeout message; write one log per rank: torchrun --redirects 3 --log-dir logs"),
    ),
)
NETWORK = Cause(
    code="network-trouble",
    seen_by=("collective-stall", "straggler", "tracker-unreachable"),
    signs=("packets-lost",),
    ruled_out_by=("database-is-locked", "key-refused"),
    because="Packets do not arrive: the wrong network interface, a firewall, a link that fails under load.",
    likely=0.15,
    fixes=(Fix("NCCL_DEBUG=INFO shows the route; NCCL_SOCKET_IFNAME sets the interface; test with a small all-reduce"),),
)
UNSHARED_UPDATES = Cause(
    code="updates-not-shared",
    seen_by=("rank-divergence",),
    signs=("gradients-differ",),
    because="Some parameters are outside DDP, updates were made under no_sync, or one rank skipped an update.",
    likely=0.4,
    fixes=(Fix("wrap the whole model and call the wrapped model; all_reduce the decision to skip an update"),),
)
DIFFERENT_START = Cause(
    code="different-start",
    seen_by=("rank-divergence",),
    signs=("from-the-start",),
    because="Ranks started with different weights: only rank 0 loaded the checkpoint, or seeds differ without DDP.",
    likely=0.3,
    fixes=(
        Fix(
            "load the checkpoint on every rank before wrapping; initialise with the same seed", setting="seed", op="set", value=0
        ),
    ),
)
OTHER_ENVIRONMENT = Cause(
    code="other-environment",
    seen_by=("ranks-differ",),
    needs=("versions-differ",),
    signs=("versions-differ",),
    because="One machine has a different environment: it was set up by hand, or its update did not finish.",
    likely=0.7,
    fixes=(Fix("install the same versions on every machine, or use one container image; `holdfast doctor` lists them"),),
)
OTHER_SAMPLER = Cause(
    code="sampler-differs",
    seen_by=("ranks-differ",),
    needs=("samplers-differ",),
    signs=("samplers-differ",),
    because="One rank orders the data differently, so some samples are drawn twice in an epoch and others never.",
    likely=0.7,
    fixes=(
        Fix("give DistributedSampler the same seed, shuffle and num_replicas on every rank", setting="seed", op="set", value=0),
    ),
)
OTHER_SEED = Cause(
    code="seed-differs",
    seen_by=("ranks-differ",),
    needs=("seeds-differ",),
    signs=("seeds-differ",),
    because="One rank has a different seed, so the run cannot be reproduced from its settings.",
    likely=0.6,
    fixes=(Fix("seed every rank in the same line: torch.manual_seed(seed), or torch.manual_seed(seed + rank)"),),
)
CLOCK_DIFFERS = Cause(
    code="clock-differs",
    seen_by=("ranks-differ",),
    needs=("clocks-differ",),
    signs=("clocks-differ",),
    because="The clock of one machine is not synchronised, so its log lines and rows have the wrong time.",
    likely=0.7,
    fixes=(Fix("start chrony or systemd-timesyncd on that machine: timedatectl set-ntp true"),),
)
REPLICA_GONE = Cause(
    code="replica-gone",
    seen_by=("replica-left",),
    because="The replica's machine failed or was preempted, or its process crashed; the other replicas continue.",
    likely=0.5,
    fixes=(Fix("read the log of the replica that left, and restart it with the same lighthouse: it joins automatically"),),
)
UNEVEN_WORK = Cause(
    code="uneven-work",
    seen_by=("straggler",),
    signs=("late-by-its-own-work",),
    against=("waits-for-disk",),
    because="One rank gets longer sequences, larger images, or does the logging and saving for all.",
    likely=0.3,
    fixes=(Fix("group samples by length over all ranks; save and log asynchronously"),),
)
ONE_SLOW_WORKER = Cause(
    code="one-slow-worker",
    seen_by=("slow-loading",),
    needs=("one-worker-slow",),
    signs=("one-worker-slow",),
    because="Workers take turns, so all wait for the slowest: one reads from slower storage, or has the large samples.",
    likely=0.5,
    fixes=(
        Fix(
            "see what it does: py-spy dump --pid PID, with its process id from the table `loader`",
            command='holdfast query -t {run} "SELECT * FROM loader"',
        ),
        Fix("use batches as soon as they are ready (torch 2.6 or newer)", setting="in_order", op="set", value=False),
    ),
)
TOO_FEW_WORKERS = Cause(
    code="too-few-workers",
    seen_by=("slow-loading", "low-gpu-utilisation"),
    signs=("waits-for-data", "no-loader-workers"),
    ruled_out_by=("worker-on-every-core",),
    because="The loader is slower than the model.",
    likely=0.35,
    fixes=(
        Fix("load in worker processes", setting="num_workers", op="set", value=2, needs=("no-loader-workers",)),
        Fix(
            "raise num_workers step by step, up to the number of cores",
            setting="num_workers",
            op="multiply",
            value=2,
            ruled_out_by=("no-loader-workers",),
        ),
        Fix(
            "keep workers alive between epochs",
            setting="persistent_workers",
            op="set",
            value=True,
            ruled_out_by=("no-loader-workers", "workers-persist"),
        ),
        Fix(
            "copy batches to the GPU while it computes",
            setting="pin_memory",
            op="set",
            value=True,
            ruled_out_by=("no-gpu-in-use", "batches-pinned"),
        ),
    ),
)
HEAVY_DECODING = Cause(
    code="images-decoded-large",
    seen_by=("slow-loading",),
    because="Preparing a sample may take too long, for example decoding images far larger than the training uses.",
    likely=0.25,
    fixes=(
        Fix("resize all images once to training size, and store them in a fast format"),
        Fix("keep decoded images in memory where they fit", setting="cache", op="set", value="ram"),
    ),
)
HEAVY_TRANSFORMS = Cause(
    code="heavy-transforms",
    seen_by=("slow-loading",),
    ruled_out_by=("no-gpu-in-use",),
    because="Augmentation on the CPU may take longer than the step on the GPU.",
    likely=0.15,
    fixes=(Fix("augment whole batches on the GPU (torchvision.transforms.v2, kornia), or precompute the fixed part"),),
)
WORK_TOO_SMALL = Cause(
    code="work-too-small-for-the-gpu",
    seen_by=("low-gpu-utilisation",),
    because="Each step is so small that the GPU finishes before the next one is launched.",
    likely=0.3,
    fixes=(
        Fix("use larger batches, and adjust the learning rate", setting="batch_size", op="multiply", value=2),
        Fix("launch fewer kernels: torch.compile, a fused optimizer", setting="compile", op="set", value="reduce-overhead"),
    ),
)
WAITS_FOR_GPU = Cause(
    code="waits-for-the-gpu",
    seen_by=("low-gpu-utilisation", "slow-step"),
    ruled_out_by=("no-gpu-in-use",),
    because="Every step reads values from the GPU (.item(), print, a branch on a tensor) and waits for them.",
    likely=0.2,
    fixes=(Fix("read losses every 50 steps; keep running sums on the GPU"),),
)
FULL_PRECISION = Cause(
    code="full-precision",
    seen_by=("slow-step", "low-gpu-utilisation"),
    ruled_out_by=("no-gpu-in-use",),
    because="The step runs in float32, at a fraction of the GPU's speed.",
    likely=0.1,
    fixes=(
        Fix("train in bfloat16", setting="dtype", op="set", value="bfloat16"),
        Fix("or allow TF32: torch.set_float32_matmul_precision('high')"),
    ),
)
THROTTLED = Cause(
    code="card-throttled",
    seen_by=("slow-step", "straggler"),
    ruled_out_by=("no-gpu-in-use",),
    because="The GPU throttles its clock because of heat or a power limit.",
    likely=0.15,
    fixes=(Fix("nvidia-smi -q -d PERFORMANCE,TEMPERATURE shows why; improve cooling, or run fewer jobs"),),
)
MEMORY_ALMOST_FULL = Cause(
    code="memory-almost-full",
    seen_by=("slow-step",),
    signs=("allocator-retries",),
    because="GPU memory is so full that the allocator frees and reallocates within steps.",
    likely=0.15,
    fixes=(Fix("use a slightly smaller batch, which makes steps faster", setting="batch_size", op="multiply", value=0.75),),
)
MACHINE_SHARED = Cause(
    code="machine-shared",
    seen_by=("slow-step", "straggler"),
    signs=("no-gpu-in-use",),
    because="Other processes use the same cores, memory or disk.",
    likely=0.15,
    fixes=(Fix("check top and uptime; use fewer threads and workers than cores, or another machine"),),
)
MORE_EACH_STEP = Cause(
    code="more-work-each-step",
    seen_by=("slow-step",),
    because="Each step does more than the one before: a graph that is never detached, a list that is searched, a growing log.",
    likely=0.2,
    fixes=(Fix("detach what is carried from step to step; the table `modules` shows which module got slower"),),
)
SHAPES_CHANGE = Cause(
    code="shapes-change",
    seen_by=("recompilation",),
    signs=("last-batch-smaller",),
    because="Input shapes keep changing: the last batch of an epoch is smaller, sequences vary in length.",
    likely=0.4,
    fixes=(
        Fix("drop the last batch", setting="drop_last", op="set", value=True),
        Fix("pad to a few fixed lengths, or torch.compile(model, dynamic=True)"),
    ),
)
VALUES_CHANGE = Cause(
    code="python-values-change",
    seen_by=("recompilation",),
    because="A Python number or flag that the compiled function reads (a step count, a float) changes from call to call.",
    likely=0.25,
    fixes=(Fix("pass it as a tensor; TORCH_LOGS=recompiles names what changed"),),
)
CPU_BUILD = Cause(
    code="cpu-build",
    seen_by=("computing-on-cpu",),
    signs=("built-for-cpu",),
    ruled_out_by=("built-for-cuda",),
    because="PyTorch was installed without CUDA (torch.version.cuda is None).",
    likely=0.3,
    fixes=(Fix("install the build for the CUDA version that nvidia-smi shows (pytorch.org/get-started)"),),
)
CARD_HIDDEN = Cause(
    code="card-hidden",
    seen_by=("computing-on-cpu",),
    against=("built-for-cpu",),
    because="The process does not see the GPU: CUDA_VISIBLE_DEVICES, a container without GPUs, a broken driver.",
    likely=0.25,
    fixes=(Fix("unset CUDA_VISIBLE_DEVICES; docker run --gpus all; compare nvidia-smi with torch.cuda.is_available()"),),
)
NOT_MOVED = Cause(
    code="model-not-moved",
    seen_by=("computing-on-cpu",),
    against=("built-for-cpu",),
    because="The script never moves the model, or picks 'cpu' by default.",
    likely=0.3,
    fixes=(Fix("call model.to('cuda'), and move each batch", setting="device", op="set", value="cuda"),),
)

OF_SPEED = (
    *(WORKER_DIED, SHARED_MEMORY_FULL, SLOW_STORAGE, WORKER_STUCK, DATA_NOT_SENT, DEADLOCK, STUCK_COMPUTE, WAITS_IN_SCRIPT),
    *(COLLECTIVE_MISMATCH, DEAD_RANK, NETWORK, UNSHARED_UPDATES, DIFFERENT_START, UNEVEN_WORK),
    *(OTHER_ENVIRONMENT, OTHER_SAMPLER, OTHER_SEED, CLOCK_DIFFERS, REPLICA_GONE),
    *(ONE_SLOW_WORKER, TOO_FEW_WORKERS, HEAVY_DECODING, HEAVY_TRANSFORMS),
    *(WORK_TOO_SMALL, WAITS_FOR_GPU, FULL_PRECISION, THROTTLED, MEMORY_ALMOST_FULL, MACHINE_SHARED, MORE_EACH_STEP),
    *(SHAPES_CHANGE, VALUES_CHANGE, CPU_BUILD, CARD_HIDDEN, NOT_MOVED),
)
