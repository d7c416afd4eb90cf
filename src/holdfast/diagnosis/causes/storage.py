"""Why checkpoints, disks and trackers fail, and why Holdfast does less."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix

_CHOOSE = Fix("resume from an earlier clean checkpoint", command="holdfast checkpoints choose {run}")

SAVE_INTERRUPTED = Cause(
    code="save-interrupted",
    seen_by=("checkpoint-torn",),
    signs=("left-by-a-dead-process",),
    ruled_out_by=("checksum-differs", "was-no-room"),
    because="The process ended while it wrote the file under its final name.",
    likely=0.4,
    fixes=(_CHOOSE, Fix("save to a temporary name and rename at the end, or use run.save")),
)
COPY_UNFINISHED = Cause(
    code="copy-unfinished",
    seen_by=("checkpoint-torn",),
    ruled_out_by=("checksum-differs", "left-by-a-dead-process", "was-no-room"),
    because="A download or copy is incomplete, or the file is only a Git LFS pointer.",
    likely=0.2,
    fixes=(Fix("download the file again and compare its size; for Git LFS run git lfs pull"),),
)
CHANGED_ON_DISK = Cause(
    code="file-changed-on-disk",
    seen_by=("checkpoint-torn",),
    needs=("checksum-differs",),
    signs=("checksum-differs",),
    because="The file was saved correctly and some bytes changed since: a failing disk, cable or memory.",
    likely=0.4,
    fixes=(_CHOOSE, Fix("check the disk: smartctl -a, dmesg -T | grep -i 'i/o error'; keep checkpoints on two disks")),
)
NO_ROOM = Cause(
    code="no-room-for-a-save",
    seen_by=("checkpoint-torn", "checkpoint-not-saved", "disk-full"),
    signs=("was-no-room",),
    ruled_out_by=("checksum-differs", "not-picklable", "write-refused"),
    because="The disk or the quota was full when the checkpoint was written.",
    likely=0.3,
    fixes=(
        Fix("keep fewer checkpoints: every 5 epochs, the best and the last are enough"),
        Fix("find what uses the space: df -h, df -i, quota -s, du -sh runs/*"),
    ),
)
CACHES = Cause(
    code="caches-fill-the-disk",
    seen_by=("disk-full",),
    because="Caches of models, data sets and packages grow in the home folder or in /tmp.",
    likely=0.2,
    fixes=(Fix("move them elsewhere: HF_HOME, TORCH_HOME, PIP_CACHE_DIR, TMPDIR; hf cache, pip cache purge"),),
)
NO_PERMISSION = Cause(
    code="no-permission",
    seen_by=("checkpoint-not-saved", "holdfast-degraded"),
    signs=("write-refused",),
    ruled_out_by=("not-possible-here", "not-picklable", "was-no-room"),
    because="The folder belongs to someone else, or is read-only.",
    likely=0.2,
    fixes=(Fix("check ls -ld FOLDER and findmnt -T FOLDER; write to your own folder"),),
)
NOT_SERIALISABLE = Cause(
    code="cannot-be-pickled",
    seen_by=("checkpoint-not-saved",),
    signs=("not-picklable",),
    ruled_out_by=("write-refused", "was-no-room"),
    because="The state holds something that cannot be pickled: a lambda, an open file, a lock.",
    likely=0.15,
    fixes=(Fix("save state_dict() of each part, not the objects"),),
)
COPY_DAMAGED = Cause(
    code="copy-of-weights-damaged",
    seen_by=("checkpoint-non-finite",),
    needs=("training-goes-on",),
    signs=("training-goes-on",),
    ruled_out_by=("norm-exploded", "jumped-at-once", "weights-jumped", "weights-unsound"),
    because="The training itself is fine: only the saved state is non-finite, such as EMA weights, a buffer, or an old state.",
    likely=0.6,
    fixes=(
        Fix("check the tensors that the finding names: a skipped update may still have reached the EMA weights"),
        Fix("protect the good file: holdfast run --policy guard saves a non-finite state under another name"),
    ),
)
OTHER_ARCHITECTURE = Cause(
    code="architecture-changed",
    seen_by=("checkpoint-incompatible",),
    ruled_out_by=("objects-refused",),
    because="The model was built with different settings: width, depth, classes, tasks.",
    likely=0.35,
    fixes=(
        Fix("build the model with the checkpoint's settings; holdfast checkpoints compare names each difference"),
        Fix("a different number of classes: drop the head's weights, load the rest with strict=False, and train a new head"),
    ),
)
PREFIX = Cause(
    code="names-have-a-prefix",
    seen_by=("checkpoint-incompatible",),
    ruled_out_by=("objects-refused",),
    because="The names differ by a prefix: module. (DDP), _orig_mod. (torch.compile) or model. (Lightning).",
    likely=0.3,
    fixes=(Fix("strip the prefix: {k.removeprefix('module.'): v for k, v in state.items()}"),),
)
WEIGHTS_ONLY = Cause(
    code="weights-only-file",
    seen_by=("checkpoint-incompatible",),
    ruled_out_by=("objects-refused",),
    because="The file holds weights but no optimizer, scheduler or step.",
    likely=0.2,
    fixes=(Fix("start a new training from these weights, with a warm-up; or use a complete checkpoint"),),
)
OTHER_VERSION = Cause(
    code="other-version",
    seen_by=("checkpoint-incompatible",),
    ruled_out_by=("objects-refused",),
    because="Another version of PyTorch or of the trainer wrote the file, or it holds objects whose class has moved.",
    likely=0.15,
    fixes=(Fix("holdfast checkpoints inspect names that version; load the file with it, and save only the state_dict"),),
)
OBJECTS_REFUSED = Cause(
    code="objects-in-checkpoint",
    seen_by=("checkpoint-incompatible",),
    needs=("objects-refused",),
    signs=("objects-refused",),
    because="The file holds objects other than tensors, which torch.load refuses because they can run code.",
    likely=0.9,
    fixes=(
        Fix("if you trust the file: torch.load(path, weights_only=False); in Lightning trainer.fit(…, weights_only=False)"),
        Fix("save tensors and plain values only; holdfast checkpoints inspect lists the objects without running code"),
    ),
)
DATABASE_LOCKED = Cause(
    code="database-locked",
    seen_by=("tracker-unreachable",),
    signs=("database-is-locked",),
    ruled_out_by=("server-silent", "key-refused"),
    because="Several processes write to MLflow's SQLite file, or the file is on a network file system.",
    likely=0.2,
    fixes=(Fix("log from rank 0 only, keep the file on a local disk, or run an MLflow server"),),
)
NO_KEY = Cause(
    code="no-key",
    seen_by=("tracker-unreachable",),
    signs=("key-refused",),
    ruled_out_by=("server-silent", "database-is-locked"),
    because="The API key is missing, or belongs to another account.",
    likely=0.2,
    fixes=(Fix("run wandb login, or set WANDB_API_KEY (MLflow: MLFLOW_TRACKING_USERNAME and _PASSWORD) in the job"),),
)
SERVER_GONE = Cause(
    code="server-does-not-answer",
    seen_by=("tracker-unreachable",),
    signs=("server-silent",),
    ruled_out_by=("database-is-locked", "key-refused"),
    because="The node has no network access, or the server is down.",
    likely=0.3,
    fixes=(
        Fix("download models and data before the job starts", needs=("no-tracker-named",)),
        Fix(
            "log offline and upload later: WANDB_MODE=offline, MLFLOW_TRACKING_URI=file:./mlruns",
            ruled_out_by=("no-tracker-named",),
        ),
    ),
)
TOO_COSTLY = Cause(
    code="budget-reached",
    seen_by=("holdfast-degraded",),
    ruled_out_by=("write-refused", "not-possible-here"),
    because="Holdfast would have used more time than its budget allows, so it samples less often.",
    likely=0.2,
    fixes=(Fix("allow more overhead", setting="budget", op="set", value="3%", command="holdfast run --budget 3% -- …"),),
)
OWN_ERROR = Cause(
    code="error-of-holdfast",
    seen_by=("holdfast-degraded",),
    ruled_out_by=("write-refused", "not-possible-here"),
    because="The loop uses something that Holdfast does not support, or Holdfast has a bug.",
    likely=0.3,
    fixes=(Fix("HOLDFAST_DEBUG=1 shows where the error in the finding was raised; please report it"),),
)

OF_STORAGE = (
    *(SAVE_INTERRUPTED, COPY_UNFINISHED, CHANGED_ON_DISK, COPY_DAMAGED, NO_ROOM, CACHES, NO_PERMISSION, NOT_SERIALISABLE),
    *(OBJECTS_REFUSED, OTHER_ARCHITECTURE, PREFIX, WEIGHTS_ONLY, OTHER_VERSION),
    *(DATABASE_LOCKED, NO_KEY, SERVER_GONE, TOO_COSTLY, OWN_ERROR),
)
