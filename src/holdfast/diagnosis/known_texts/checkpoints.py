"""Texts of checkpoints: incomplete, incompatible, unsafe, not saved."""

from __future__ import annotations

from holdfast.diagnosis.known_texts.known_text import WARNING, KnownText, Pattern

OF_CHECKPOINTS = (
    KnownText(
        "not-a-checkpoint",
        ("invalid load key, 'v'", "invalid load key, '<'", "invalid load key, '{'"),
        "checkpoint-torn",
        "The file is not a checkpoint: 'v' is a Git LFS pointer, '<' a saved web page, '{' a JSON file.",
        "Get the real file: `git lfs pull`, or download it again; `ls -l` shows a size of a few hundred bytes.",
    ),
    KnownText(
        "checkpoint-torn",
        (
            "PytorchStreamReader failed",
            "failed finding central directory",
            "torch._C.PyTorchFileReader(name_or_buffer)",  # a line of the traceback; the error itself may be any
            "invalid header or archive is corrupted",
            "unexpected EOF, expected * more bytes",
            "pickle data was truncated",
            "EOFError: Ran out of input",
            "UnpicklingError: invalid load key",
            "invalid load key",
            "BadZipFile",
            "storage has wrong byte size",
        ),
        "checkpoint-torn",
        "The file is incomplete: the save was interrupted, the disk was full, or a copy did not finish.",
        "`holdfast checkpoints verify FOLDER` shows which are complete; `holdfast checkpoints choose FOLDER` which to resume"
        " from.",
    ),
    KnownText(
        "safetensors-torn",
        (
            "Error while deserializing header",
            "SafetensorError",
            "MetadataIncompleteBuffer",
            "InvalidHeaderDeserialization",
            "HeaderTooLarge",
        ),
        "checkpoint-torn",
        "The safetensors file is incomplete, or another kind of file (a Git LFS pointer of a few hundred bytes).",
        "`holdfast checkpoints verify FILE` says which; download it again (`git lfs pull`), or use an earlier one.",
    ),
    KnownText(
        "weights-only",
        ("Weights only load failed", "WeightsUnpickler error", "Unsupported global: GLOBAL"),
        "checkpoint-incompatible",
        "Since PyTorch 2.6 torch.load refuses files that hold more than tensors and plain values, because those can run code.",
        "If you trust the file: torch.load(path, weights_only=False), or name the class in"
        " torch.serialization.add_safe_globals. `holdfast checkpoints inspect FILE` looks inside without running anything.",
    ),
    KnownText(
        "size-mismatch",
        ("size mismatch for *: copying a param with shape", "size mismatch for *: copying *shape"),
        "checkpoint-incompatible",
        "A tensor's shape differs between checkpoint and model: another architecture, or another number of classes.",
        "Build the model with the checkpoint's settings, or drop that layer's weights and train it from scratch. `holdfast"
        " checkpoints compare FILE package.module:factory` names every difference.",
    ),
    KnownText(
        "keys-differ",
        ("Missing key(s) in state_dict", "Unexpected key(s) in state_dict", "Error(s) in loading state_dict for"),
        "checkpoint-incompatible",
        "The names in the checkpoint and in the model differ: another architecture, or a prefix (module., _orig_mod., model.).",
        "Strip the prefix, or save unwrapped: model.module.state_dict() under DDP, model._orig_mod after torch.compile."
        " `holdfast checkpoints compare` names the difference.",
    ),
    KnownText(
        "optimizer-does-not-fit",
        (
            "loaded state dict has a different number of parameter groups",
            "contains a parameter group that doesn't match the size of optimizer's group",
        ),
        "checkpoint-incompatible",
        "The optimizer's parameters or groups differ from the saved ones.",
        "Create the optimizer exactly as before (same freezing, same groups) before loading, or resume without its state and"
        " warm up.",
    ),
    KnownText(
        "not-in-the-checkpoint",
        (
            Pattern(
                r"KeyError: ['\"](?:optimizer|optimizer_states?|optimizer_state_dict|state_dict|model|model_state_dict|scheduler|"
                r"lr_scheduler|lr_schedulers|epoch|step|global_step|scaler|ema|pytorch-lightning_version|net|weights)['\"]",
                ("keyerror",),
            ),
        ),
        "checkpoint-incompatible",
        "The file has no such entry: it holds weights only, or another program saved it under another name.",
        "`holdfast checkpoints inspect FILE` lists its entries.",
    ),
    KnownText(
        "checkpoint-of-a-gpu",
        ("Attempting to deserialize object on a CUDA device", "Attempting to deserialize object on CUDA device"),
        "checkpoint-incompatible",
        "The checkpoint was saved on a GPU that this machine does not have.",
        "torch.load(path, map_location='cpu'), then move the model.",
    ),
    KnownText(
        "checkpoint-missing",
        (
            Pattern(r"No such file or directory: .{0,200}\.(?:pt|pth|ckpt|safetensors|bin)\b", ("directory",)),
            "does not appear to have a file named pytorch_model.bin",
            "no file named model.safetensors",
            "Can't find a valid checkpoint at",
            "Checkpoint file * not found",
        ),
        "checkpoint-incompatible",
        "There is no checkpoint at that path.",
        "`holdfast checkpoints list` finds what exists; run it in the folder that the training was started in.",
    ),
    KnownText(
        "new-layers",
        (
            "were not initialized from the model checkpoint",
            "newly initialized because the shapes did not match",
            "newly initialized because missing from the checkpoint",
            "were not used when initializing",
        ),
        "checkpoint-incompatible",
        "Some layers have no weights in the checkpoint and start at random: expected for a new head, wrong otherwise.",
        "Read the names in the message: if there are more than the head's, the architecture or a prefix differs.",
        WARNING,
    ),
    KnownText(
        "save-failed",
        (
            "PytorchStreamWriter failed writing",
            "enforce fail at inline_container.cc",
            "basic_ios::clear: iostream error",
            "Parent directory * does not exist",
        ),
        "checkpoint-not-saved",
        "A checkpoint could not be written: the disk is full, a quota is reached, or the folder does not exist.",
        "`df -h .` and `quota -s`; keep fewer checkpoints; save under another name and rename, so that the last good one"
        " survives.",
    ),
    KnownText(
        "cannot-pickle",
        (
            "Can't pickle local object",
            "Can't get local object",
            "cannot pickle '*' object",
            "Can't pickle <function",
            "Can't pickle <class",
        ),
        "checkpoint-not-saved",
        "An object cannot be pickled for a save or for a spawned worker: a lambda, a function inside a function, an open file.",
        "Save state_dict(), not the object; move the lambda or the class to the top of a module.",
    ),
    KnownText(
        "cannot-write-there",
        ("Read-only file system", "[Errno 30]", "PermissionError: [Errno 13] Permission denied"),
        "checkpoint-not-saved",
        "The process may not write there: no permission, or a read-only file system.",
        "Write somewhere else (HF_HOME, TMPDIR, the output folder), or fix the owner: `ls -ld FOLDER`.",
    ),
)
