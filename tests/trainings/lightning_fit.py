"""A Lightning Trainer: validation, clipping, a schedule; and its sanity check before the first step."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import lightning
import torch
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = classifier()

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        inputs, labels = batch
        loss = F.cross_entropy(self.model(inputs), labels)
        story.step(losses=loss, epochs=self.current_epoch, samples=len(labels))
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        story.step(norms=norm_of(self.parameters()), lr=optimizer.param_groups[0]["lr"])

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> None:
        inputs, labels = batch
        loss = F.cross_entropy(self.model(inputs), labels)
        if not self.trainer.sanity_checking:
            self.log("val_loss", loss, batch_size=len(labels))

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            story.step(validation=float(self.trainer.callback_metrics["val_loss"]))

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


story = Story()
model = Model()
trainer = lightning.Trainer(
    max_epochs=4,
    accelerator="cpu",
    gradient_clip_val=0.5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir=Path(sys.argv[1]).parent,
)
trainer.fit(model, DataLoader(digits(70), batch_size=16, shuffle=True), DataLoader(digits(25, seed=2), batch_size=16))
story.save(model, names=[name for name, _ in model.named_parameters()])
