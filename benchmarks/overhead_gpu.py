"""What Holdfast costs on a GPU, next to what people do today, on one training step, interleaved in one process.

Two trainings, both in bfloat16 autocast with a fused AdamW. `gpt2`: a GPT-2-small-sized model, batch 16 x 1024, 149 tensors; the
GPU is the limit. `resnet`: ResNet-18 for CIFAR, batch 64, 62 tensors; the host is the limit. `--graphs` compiles the model with
CUDA graphs (`mode="reduce-overhead"`). Each variant does a short burst of steps in turn; printed is its median against the bare
steps of the same round, with the interval that holds the true median in 95 of 100 such runs.

Holdfast's own count of its host time includes the first look at gradients that the backward pass has just made (under `guard`),
which the optimizer then need not take. So it is also printed how much longer `optimizer.step()` takes. That says something where
the host is the limit (`--small`): else the call waits for the GPU.

    PYTHONPATH=src python benchmarks/overhead_gpu.py [--training resnet] [--graphs] [--rounds 200] [--small]
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from holdfast.inside.arm import armed
from holdfast.inside.policy import Policy
from holdfast.inside.scope import Scope
from holdfast.inside.taps.hooks import Hooks
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.segment import Segment

BARS = {
    "gpt2": {"observe": 0.5, "guard": 0.5, "heal": 1.0},
    "resnet": {"observe": 2.0, "guard": 3.0, "heal": 5.0},
}  # per cent
HOST_TIME = {"observe": 150, "guard": 200}  # microseconds a step of Holdfast's own count, for the 149 tensors of gpt2
POLICIES = tuple(BARS["gpt2"])
BY_HAND_EVERY = 8  # rounds, in which what people do today is measured instead


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (p.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, vocabulary: int = 50304, width: int = 768, layers: int = 12, heads: int = 12, length: int = 1024) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Sequential):
    """As for CIFAR: the first convolution is 3 x 3 with stride 1."""

    def __init__(self) -> None:
        blocks, width = [], 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [Residual(width, outputs, stride), Residual(outputs, outputs, 1)]
            width = outputs
        stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        super().__init__(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Workload:
    """One training step and its variants."""

    def __init__(self, training: str, *, small: bool, graphs: bool) -> None:
        torch.manual_seed(0)
        self.training = training
        if training == "gpt2":
            self.model = Transformer().cuda()
            self.data = torch.randint(0, 50000, (8, 2, 256) if small else (8, 16, 1024), device="cuda")
            self.labels = self.data.flatten(1)
        else:
            self.model = ResNet18().cuda()
            self.data = torch.randn(8, 64, 3, 32, 32, device="cuda")
            self.labels = torch.randint(0, 10, (8, 64), device="cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.parameters = list(self.model.parameters())
        self.forward = torch.compile(self.model, mode="reduce-overhead") if graphs else self.model
        folder = Path(tempfile.mkdtemp())
        self.scope = Scope(RunFolder.create(folder, "overhead-gpu"), policy=Policy("heal"))
        self.kept: tuple = ()
        self.update_times: list[float] = []  # seconds of the host in `optimizer.step()`, of the burst in progress
        self.bare_times: list[float] = []  # milliseconds a step, one for each round
        self.added: dict[str, list[float]] = {policy: [] for policy in POLICIES}  # seconds of the host to `optimizer.step()`
        self.order: list[tuple[str, int]] = []  # which policy the recorded steps were made under
        self.warm = 0  # steps before the first burst that counts
        armed().add(self.scope)
        self.hooks: Hooks = armed()._hooks  # type: ignore[assignment]

    def be(self, policy: str) -> None:
        """Record the coming steps under another policy."""
        training = self.scope.trainings[0]
        if not self.kept:
            self.kept = (training.guard, training.control)
        training.guard, training.control = self.kept
        if policy != "heal":
            training.control = None
        if policy == "observe":
            training.guard = None

    def forward_backward(self, number: int) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            out = self.forward(self.data[number % 8])
        loss = F.cross_entropy(out.float().view(-1, out.size(-1)), self.labels[number % 8])
        loss.backward()
        return loss

    def update(self) -> None:
        begun = time.perf_counter()
        self.optimizer.step()
        self.update_times.append(time.perf_counter() - begun)
        self.optimizer.zero_grad(set_to_none=True)

    def bare(self, number: int) -> None:
        self.forward_backward(number)
        self.update()

    def check_loss(self, number: int) -> None:
        if not torch.isfinite(self.forward_backward(number)).item():
            raise SystemExit("the loss is not finite")
        self.update()

    def check_each_gradient(self, number: int) -> None:
        self.forward_backward(number)
        for parameter in self.parameters:
            if torch.isnan(parameter.grad).any().item():
                raise SystemExit("a gradient is not finite")
        self.update()

    def anomaly_mode(self, number: int) -> None:
        with torch.autograd.set_detect_anomaly(True):
            self.forward_backward(number)
        self.update()


def time_burst(work: Workload, name: str, steps: int) -> float:
    """Milliseconds per step; Holdfast's hooks are in place for its own variants only."""
    step = getattr(work, "bare" if name in POLICIES or name == "bare again" else name)
    if name in POLICIES:
        work.be(name)
        work.hooks.install()
        step(0)
    torch.cuda.synchronize()
    work.update_times.clear()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for number in range(steps):
        step(number)
    end.record()
    torch.cuda.synchronize()
    if name in POLICIES:
        work.order.append((name, steps + 1))
        work.hooks.remove()
    return begin.elapsed_time(end) / steps


def measure(work: Workload, rounds: int, steps: int, *, others: bool) -> dict[str, list[float]]:
    watched = ["bare", *POLICIES, "bare again"]
    by_hand = ["bare", "check_loss", "check_each_gradient", "anomaly_mode", "bare again"] if others else []
    for number in range(30):  # Holdfast's first steps find the model and compile its kernel
        work.bare(number)
    work.hooks.remove()
    for name in {**dict.fromkeys(watched), **dict.fromkeys(by_hand)}:
        time_burst(work, name, 3)
    work.order.clear()
    work.warm = work.scope.trainings[0].step
    ratios: dict[str, list[float]] = {name: [] for name in [*watched, *by_hand]}
    for number in range(rounds):
        names = by_hand if by_hand and number % BY_HAND_EVERY == 0 else watched
        times, updates = {}, {}
        for name in names if number % 2 else reversed(names):
            times[name] = time_burst(work, name, steps)
            updates[name] = statistics.median(work.update_times)
        for policy in POLICIES if names is watched else ():
            work.added[policy].append(updates[policy] - (updates["bare"] + updates["bare again"]) / 2)
        bare = (times["bare"] + times["bare again"]) / 2
        work.bare_times.append(bare)
        for name in names:
            ratios[name].append(times[name] / bare)
    return ratios


def extra(ratios: list[float]) -> tuple[float, float, float]:
    """Per cent that a variant takes more than the bare steps of the same round: the median, and its 95 % interval."""
    ordered, half = sorted(ratios), 0.98 * math.sqrt(len(ratios))
    middle = len(ordered) / 2
    low, high = ordered[max(0, math.floor(middle - half))], ordered[min(len(ordered) - 1, math.ceil(middle + half))]
    return tuple(100 * (ratio - 1) for ratio in (statistics.median(ordered), low, high))  # type: ignore[return-value]


def own_count(work: Workload) -> dict[str, float]:
    """Holdfast's own count of its host time, in microseconds a step, by policy."""
    training = work.scope.trainings[0]
    armed().close_all()
    rows = [Segment(path) for path in sorted((training.recorder.recording.path / "steps").iterdir())]
    own = [seconds for segment in rows for seconds in segment.column("holdfast_seconds")][work.warm :]
    counts: dict[str, list[float]] = {name: [] for name in POLICIES}
    for name, steps in work.order:
        counts[name] += own[:steps]
        own = own[steps:]
    return {name: 1e6 * statistics.median(values) for name, values in counts.items()}


def report(work: Workload, ratios: dict[str, list[float]]) -> bool:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {work.training}: ", end="")
    print(f"bare step {statistics.median(work.bare_times):.2f} ms (fastest {min(work.bare_times):.2f})")
    met = True
    for name, values in ratios.items():
        more, low, high = extra(values)
        bar = BARS[work.training].get(name)
        met &= bar is None or more <= bar
        words = "" if bar is None else f", bar {bar:+} %: {'met' if more <= bar else 'MISSED'}"
        print(f"  {name:20s} {more:+7.2f} % ({low:+.2f} to {high:+.2f}, {len(values)} rounds){words}")
    training = work.scope.trainings[0]
    counts = own_count(work)
    for name, metric in training.budget.metrics.items():
        interval = training.budget.interval(name)
        print(f"  {name}: {1e3 * (metric.cost or 0):.2f} ms a sample, every {interval} steps or a second")
    for name, microseconds in counts.items():
        bar = HOST_TIME.get(name, math.inf) if work.training == "gpt2" else math.inf
        met &= microseconds <= bar
        words = f", bar {bar}: {'met' if microseconds <= bar else 'MISSED'}" if bar < math.inf else ""
        print(f"  {name}: {microseconds:.0f} us of host time a step by Holdfast's own count{words}", end="")
        print(f"; optimizer.step() takes {1e6 * statistics.median(work.added[name]):.0f} us longer on the host")
    return met


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--training", choices=tuple(BARS), default="gpt2")
    parser.add_argument("--graphs", action="store_true", help="compile the model with CUDA graphs")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--steps", type=int, default=5, help="of each variant in each round")
    parser.add_argument("--small", action="store_true", help="gpt2 with batch 2 x 256: a step bound by the host")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: this benchmark needs one")
        return 0
    torch.backends.cuda.matmul.allow_tf32 = True
    work = Workload(arguments.training, small=arguments.small, graphs=arguments.graphs)
    met = report(work, measure(work, arguments.rounds, arguments.steps, others=not arguments.graphs))
    return 0 if met or arguments.small else 1


if __name__ == "__main__":
    raise SystemExit(main())
