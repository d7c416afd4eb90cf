"""How good is `holdfast plan`? It measures small batches; what it predicts for larger ones is compared with what they need.

python benchmarks/plan_gpu.py            needs an NVIDIA GPU, transformers and timm
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
FACTORIES = ("resnet50", "recurrent", "gpt2_small")
TIMES, MOST = (4,), 0.10  # the batch is so many times the largest that was measured; the error at most


def gpt2_small(batch: int) -> tuple[Any, Any]:
    """124 million parameters, 512 tokens."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = torch.randint(50_000, (batch, 512))
    return GPT2LMHeadModel(GPT2Config()), {"input_ids": tokens, "labels": tokens}


def resnet50(batch: int) -> tuple[Any, Any]:
    """25 million parameters, images of 224 x 224."""
    import timm
    import torch

    return timm.create_model("resnet50", pretrained=False), torch.randn(batch, 3, 224, 224)


def recurrent(batch: int) -> tuple[Any, Any]:
    """Two LSTM layers over 400 time steps."""
    import torch

    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.head = torch.nn.LSTM(64, 512, 2, batch_first=True), torch.nn.Linear(512, 20)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.rows(rows)[0])
            return found

    return Rows(), torch.randn(batch, 400, 64)


def main() -> int:
    """Plan and check all of them; 1 if a prediction is off by more than a tenth."""
    import torch

    from holdfast.environment.plan.measuring import measure_training
    from holdfast.environment.plan.options import what_fits
    from holdfast.environment.plan.trial import MeasuredTraining, measure, measured_command

    if not torch.cuda.is_available():
        print("needs an NVIDIA GPU")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    well = True
    for name in FACTORIES:
        training = MeasuredTraining(command=measured_command([f"plan_gpu:{name}"]))
        facts = measure_training(training, lambda _text: None)
        fits = {one.precision: one.batch for one in what_fits(facts, None) if one.card.startswith("this")}
        print(f"{name}: measured at {', '.join(str(point.batch) for point in facts.points)}; largest batch here {fits}")
        for precision, line in facts.lines.items():
            for times in TIMES:
                batch = times * facts.points[-1].batch
                found = measure(training, batch=batch, precision="bf16" if precision == "bf16" else "")
                if found is None:
                    print(f"  {precision:<11} batch {batch:>6}: out of memory (predicted {line.peak(batch) / 2**30:.1f} GB)")
                    continue
                error = line.peak(found.batch) / found.peak - 1
                well = well and abs(error) <= MOST
                told = f"predicted {line.peak(found.batch) / 2**30:7.2f} GB, measured {found.peak / 2**30:7.2f} GB"
                print(
                    f"  {precision:<11} batch {batch:>6}: {told}  {error:+.1%} {'ok' if abs(error) <= MOST else 'MISSED'}",
                    flush=True,
                )
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
