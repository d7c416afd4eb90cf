"""Why checkpoints, disks and trackers fail, and why Holdfast itself steps back."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix

_CHOOSE = Fix("resume from an earlier clean one", command="holdfast checkpoints choose {run}")

SAVE_INTERRUPTED = Cause(
    code="save-interrupted",
    seen_by=("checkpoint-torn",),
    signs=("left-by-a-dead-process",),
    ruled_out_by=("checksum-differs", "was-no-room"),
    because="The process ended in the middle of a save to the final file name.",
    likely=0.4,
    fixes=(_CHOOSE, Fix("save to a temporary name and rename at the end, or use run.save")),
)
COPY_UNFINISHED = Cause(
    code="copy-unfinished",
    seen_by=("checkpoint-torn",),
    ruled_out_by=("checksum-differs", "left-by-a-dead-process", "was-no-room"),
    because="A download or copy is incomplete, or the file is only a Git LFS pointer.",
    likely=0.2,
    fixes=(Fix("download it again and compare the size; git lfs pull"),),
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
    ruled_out_by=("checksum-differs",),
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
    ruled_out_by=("not-possible-here",),
    because="The folder belongs to someone else, or is read-only.",
    likely=0.2,
    fixes=(Fix("check ls -ld FOLDER and findmnt -T FOLDER; write to your own folder"),),
)
NOT_SERIALISABLE = Cause(
    code="cannot-be-pickled",
    seen_by=("checkpoint-not-saved",),
    because="The state holds something that cannot be pickled: a lambda, an open file, a lock.",
    likely=0.15,
    fixes=(Fix("save state_dict() of each part, not the objects"),),
)
COPY_DAMAGED = Cause(
    code="copy-of-weights-damaged",
    seen_by=("checkpoint-non-finite",),
    needs=("training-goes-on",),
    signs=("training-goes-on",),
    ruled_out_by=("norm-exploded", "jumped-at-once"),
    because="The training itself is fine: only the saved state is bad, such as averaged weights, a buffer, or an old state.",
    likely=0.6,
    fixes=(
        Fix("look at the tensors in the finding: an update skipped for the weights may have reached their average"),
        Fix("keep the good file: holdfast run --policy guard saves a bad one beside it"),
    ),
)
OTHER_ARCHITECTURE = Cause(
    code="architecture-changed",
    seen_by=("checkpoint-incompatible",),
    ruled_out_by=("objects-refused",),
    because="The model was built with other settings: width, depth, classes, tasks.",
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
    because="The names differ by module. (DDP), _orig_mod. (torch.compile) or model. (Lightning).",
    likely=0.3,
    fixes=(Fix("strip it: {name.removeprefix('module.'): value …}; or save the wrapped model"),),
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
    because="Another version of PyTorch or of the trainer wrote it, or it holds objects whose code has moved.",
    likely=0.15,
    fixes=(Fix("holdfast checkpoints inspect shows what wrote it; load it with that version, and save the state_dict alone"),),
)
OBJECTS_REFUSED = Cause(
    code="objects-in-checkpoint",
    seen_by=("checkpoint-incompatible",),
    needs=("objects-refused",),
    signs=("objects-refused",),
    because="The file holds objects beside tensors, and torch.load does not build them: they could run code.",
    likely=0.9,
    fixes=(
        Fix("if you trust the file: torch.load(path, weights_only=False); in Lightning trainer.fit(…, weights_only=False)"),
        Fix("save plain values only; holdfast checkpoints inspect shows what is in it, and runs nothing"),
    ),
)
DATABASE_LOCKED = Cause(
    code="database-locked",
    seen_by=("tracker-unreachable",),
    signs=("database-is-locked",),
    ruled_out_by=("server-silent", "key-refused"),
    because="Several processes write MLflow's SQLite file, or it is on a network file system.",
    likely=0.2,
    fixes=(Fix("log from rank 0 only, keep the file on a local disk, or run an MLflow server"),),
)
NO_KEY = Cause(
    code="no-key",
    seen_by=("tracker-unreachable",),
    signs=("key-refused",),
    ruled_out_by=("server-silent", "database-is-locked"),
    because="The key is missing, or belongs to another account.",
    likely=0.2,
    fixes=(Fix("wandb login, WANDB_API_KEY, MLFLOW_TRACKING_USERNAME; in a job, pass these variables on"),),
)
SERVER_GONE = Cause(
    code="server-does-not-answer",
    seen_by=("tracker-unreachable",),
    signs=("server-silent",),
    ruled_out_by=("database-is-locked", "key-refused"),
    because="The node has no network access, or the server is down.",
    likely=0.3,
    fixes=(Fix("log offline and upload later: WANDB_MODE=offline, MLFLOW_TRACKING_URI=file:./mlruns"),),
)
TOO_COSTLY = Cause(
    code="budget-reached",
    seen_by=("holdfast-degraded",),
    ruled_out_by=("write-refused", "not-possible-here"),
    because="Watching would have cost more than its budget, so Holdfast samples less often.",
    likely=0.2,
    fixes=(Fix("allow more", setting="budget", op="set", value="3%", command="holdfast run --budget 3% -- …"),),
)
OWN_ERROR = Cause(
    code="error-of-holdfast",
    seen_by=("holdfast-degraded",),
    ruled_out_by=("write-refused", "not-possible-here"),
    because="The loop uses something that Holdfast does not support, or Holdfast has a bug.",
    likely=0.3,
    fixes=(Fix("the finding names what was switched off and the error; HOLDFAST_DEBUG=1 shows where; please report it"),),
)

OF_STORAGE = (
    *(SAVE_INTERRUPTED, COPY_UNFINISHED, CHANGED_ON_DISK, COPY_DAMAGED, NO_ROOM, CACHES, NO_PERMISSION, NOT_SERIALISABLE),
    *(OBJECTS_REFUSED, OTHER_ARCHITECTURE, PREFIX, WEIGHTS_ONLY, OTHER_VERSION),
    *(DATABASE_LOCKED, NO_KEY, SERVER_GONE, TOO_COSTLY, OWN_ERROR),
)
