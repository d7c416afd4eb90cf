"""Why checkpoints, disks and trackers fail, and why Holdfast itself steps back."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix

_CHOOSE = Fix("resume from an earlier clean one", command="holdfast checkpoints choose {run}")

SAVE_INTERRUPTED = Cause(
    code="save-interrupted",
    seen_by=("checkpoint-torn",),
    signs=("left-by-a-dead-process",),
    ruled_out_by=("checksum-differs", "was-no-room"),
    because="The process ended in the middle of a save, and the file was written under its final name.",
    likely=0.4,
    fixes=(_CHOOSE, Fix("save under another name and rename at the end, or let run.save do it")),
)
COPY_UNFINISHED = Cause(
    code="copy-unfinished",
    seen_by=("checkpoint-torn",),
    ruled_out_by=("checksum-differs", "left-by-a-dead-process", "was-no-room"),
    because="A download or a copy stopped on the way, or only a Git LFS pointer came.",
    likely=0.2,
    fixes=(Fix("fetch it again and compare the size; git lfs pull"),),
)
CHANGED_ON_DISK = Cause(
    code="file-changed-on-disk",
    seen_by=("checkpoint-torn",),
    needs=("checksum-differs",),
    signs=("checksum-differs",),
    because="The file was whole when it was saved, and some of its bytes are others now: a disk, a cable or memory that fails.",
    likely=0.4,
    fixes=(_CHOOSE, Fix("look after the disk: smartctl -a, dmesg -T | grep -i 'i/o error'; keep checkpoints on two disks")),
)
NO_ROOM = Cause(
    code="no-room-for-a-save",
    seen_by=("checkpoint-torn", "checkpoint-not-saved", "disk-full"),
    signs=("was-no-room",),
    ruled_out_by=("checksum-differs",),
    because="The disk or the quota was full when the checkpoint was written.",
    likely=0.3,
    fixes=(
        Fix("keep fewer: every 5 epochs, the best and the last are enough"),
        Fix("look where the room went: df -h, df -i, quota -s, du -sh runs/*"),
    ),
)
CACHES = Cause(
    code="caches-fill-the-disk",
    seen_by=("disk-full",),
    because="Caches of models, data sets and packages grow in the home folder or in /tmp.",
    likely=0.2,
    fixes=(Fix("put them elsewhere: HF_HOME, TORCH_HOME, PIP_CACHE_DIR, TMPDIR; hf cache, pip cache purge"),),
)
NO_PERMISSION = Cause(
    code="no-permission",
    seen_by=("checkpoint-not-saved", "holdfast-degraded"),
    because="The folder belongs to someone else, or is read-only.",
    likely=0.2,
    fixes=(Fix("ls -ld FOLDER; write to a folder of your own"),),
)
NOT_SERIALISABLE = Cause(
    code="cannot-be-pickled",
    seen_by=("checkpoint-not-saved",),
    because="The state holds something that cannot be written: a lambda, an open file, a lock.",
    likely=0.15,
    fixes=(Fix("save state_dict() of each part, not the objects"),),
)
COPY_DAMAGED = Cause(
    code="copy-of-weights-damaged",
    seen_by=("checkpoint-non-finite",),
    needs=("training-goes-on",),
    signs=("training-goes-on",),
    ruled_out_by=("norm-exploded", "jumped-at-once"),
    because="The training goes on as before: only what is saved is bad, an average of the weights, a buffer, an old state.",
    likely=0.6,
    fixes=(
        Fix("look at the tensors that are named: a bad update that was skipped in the weights may have come into their average"),
        Fix("keep the good file: holdfast run --policy guard saves a bad one beside it"),
    ),
)
OTHER_ARCHITECTURE = Cause(
    code="architecture-changed",
    seen_by=("checkpoint-incompatible",),
    because="The model was built with other settings: width, depth, classes, tasks.",
    likely=0.35,
    fixes=(
        Fix("build it with the settings of the checkpoint; holdfast checkpoints compare names each difference"),
        Fix("another number of classes: drop the head's weights, load the rest with strict=False, and train the head anew"),
    ),
)
PREFIX = Cause(
    code="names-have-a-prefix",
    seen_by=("checkpoint-incompatible",),
    because="The names differ by module. (DDP), _orig_mod. (torch.compile) or model. (Lightning).",
    likely=0.3,
    fixes=(Fix("strip it: {name.removeprefix('module.'): value …}; or save the model that is inside"),),
)
WEIGHTS_ONLY = Cause(
    code="weights-only-file",
    seen_by=("checkpoint-incompatible",),
    because="The file holds weights but no optimizer, scheduler or step.",
    likely=0.2,
    fixes=(Fix("start a new training from these weights, with a warm-up; or take a checkpoint that holds all"),),
)
OTHER_VERSION = Cause(
    code="other-version",
    seen_by=("checkpoint-incompatible",),
    because="Another version of PyTorch or of the trainer wrote it, or it holds objects of code that has moved.",
    likely=0.15,
    fixes=(Fix("holdfast checkpoints inspect shows what wrote it; load it with that version, and save the state_dict alone"),),
)
DATABASE_LOCKED = Cause(
    code="database-locked",
    seen_by=("tracker-unreachable",),
    signs=("database-is-locked",),
    ruled_out_by=("server-silent", "key-refused"),
    because="Several processes write MLflow's SQLite file, or it lies on a network file system.",
    likely=0.2,
    fixes=(Fix("log from rank 0 only, keep the file on a local disk, or run an MLflow server"),),
)
NO_KEY = Cause(
    code="no-key",
    seen_by=("tracker-unreachable",),
    signs=("key-refused",),
    ruled_out_by=("server-silent", "database-is-locked"),
    because="There is no key, or one of another account.",
    likely=0.2,
    fixes=(Fix("wandb login, WANDB_API_KEY, MLFLOW_TRACKING_USERNAME; in a job the variables must be passed on"),),
)
SERVER_GONE = Cause(
    code="server-does-not-answer",
    seen_by=("tracker-unreachable",),
    signs=("server-silent",),
    ruled_out_by=("database-is-locked", "key-refused"),
    because="The node has no way to the network, or the server is down.",
    likely=0.3,
    fixes=(Fix("write offline and send later: WANDB_MODE=offline, MLFLOW_TRACKING_URI=file:./mlruns"),),
)
TOO_COSTLY = Cause(
    code="budget-reached",
    seen_by=("holdfast-degraded",),
    because="Watching would have cost more than its share of the step, so that it was thinned out.",
    likely=0.2,
    fixes=(Fix("allow more", setting="budget", op="set", value="3%", command="holdfast run --budget 3% -- …"),),
)
OWN_ERROR = Cause(
    code="error-of-holdfast",
    seen_by=("holdfast-degraded",),
    because="Something in the loop is of a kind that Holdfast does not know, or Holdfast has a bug.",
    likely=0.3,
    fixes=(Fix("the finding names what is no longer done and the error; HOLDFAST_DEBUG=1 shows where; please report it"),),
)

OF_STORAGE = (
    *(SAVE_INTERRUPTED, COPY_UNFINISHED, CHANGED_ON_DISK, COPY_DAMAGED, NO_ROOM, CACHES, NO_PERMISSION, NOT_SERIALISABLE),
    *(OTHER_ARCHITECTURE, PREFIX, WEIGHTS_ONLY, OTHER_VERSION),
    *(DATABASE_LOCKED, NO_KEY, SERVER_GONE, TOO_COSTLY, OWN_ERROR),
)
