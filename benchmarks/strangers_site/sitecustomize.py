"""In every Python of `make strangers-healthy`, with and without Holdfast: a digest of the weights after each update.

Python imports this at its start. It waits for the modules that it needs, and changes nothing of them: torch has a public hook
after every update of an optimizer. At the end, `$STRANGERS_DIGEST` holds how many updates there were, and the digest of all.
torchvision for CUDA cannot load its operators beside torch for the CPU: the one that Ultralytics calls is defined here.
"""

import atexit
import gc
import hashlib
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path


class WhenImported:
    """Call a function before or after a module is imported; first on `sys.meta_path` until then."""

    def __init__(self, name, *, before=None, after=None):
        self.name, self.before, self.after = name, before, after
        sys.meta_path.insert(0, self)

    def find_spec(self, name, _path=None, _target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        if self.before is not None:
            self.before()
        spec = find_spec(name)
        if self.after is not None and spec is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                self.after(module)

            spec.loader.exec_module = exec_module
        return spec


class Digest:
    """All weights after each update; where no optimizer of torch made one (Keras), those at the end."""

    def __init__(self):
        self.count, self.sum = 0, hashlib.sha256()

    def listen(self, module):
        module.register_optimizer_step_post_hook(self.updated)
        atexit.register(self.write)

    def updated(self, optimizer, _args, _kwargs):
        self.count += 1
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.sum.update(_bytes(parameter))

    def write(self):
        if not self.count:
            parameter = sys.modules["torch"].nn.Parameter
            for content in sorted(_bytes(thing) for thing in gc.get_objects() if type(thing) is parameter):
                self.sum.update(content)
        if os.getpid() == PROCESS:
            Path(os.environ["STRANGERS_DIGEST"]).write_text(json.dumps({"updates": self.count, "digest": self.sum.hexdigest()}))


def _bytes(tensor):
    return tensor.detach().cpu().contiguous().view(-1).view(sys.modules["torch"].uint8).numpy().tobytes()


def declare_operators():
    import torch

    try:
        torch.ops.load_library(str(Path(find_spec("torchvision").origin).with_name("_C.so")))
    except (OSError, AttributeError):
        LIBRARY.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            LIBRARY[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        LIBRARY[0].impl("nms", suppress, "CPU")


def suppress(boxes, scores, limit):
    """Non-maximum suppression: the best boxes that do not overlap a better one too much."""
    from torchvision.ops import box_iou

    kept, left = [], scores.argsort(descending=True, stable=True)
    while len(left):
        kept.append(left[0])
        left = left[1:][box_iou(boxes[left[:1]], boxes[left[1:]])[0] <= limit]
    return sys.modules["torch"].stack(kept) if kept else left


PROCESS = os.getpid()
LIBRARY = []
if "STRANGERS_DIGEST" in os.environ:
    WhenImported("torch.optim.optimizer", after=Digest().listen)
    WhenImported("torchvision", before=declare_operators, after=lambda it: setattr(it.extension, "_has_ops", lambda: True))
