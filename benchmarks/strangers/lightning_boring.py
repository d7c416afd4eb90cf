"""Lightning's loop with the model of its own demos, which learns to give small outputs."""

import sys

import lightning
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from torch.utils.data import DataLoader

PACKAGE = "lightning"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own


class Demo(BoringModel):
    """The demo's own model; more data, so that a fault has time to show."""

    def train_dataloader(self) -> DataLoader:
        return DataLoader(data, batch_size=4)


lightning.seed_everything(0)
data = RandomDataset(32, 400)  # drawn here: in the hook, it would begin with the very samples that are held out
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
lightning.Trainer(max_epochs=4, accelerator="cpu", default_root_dir=sys.argv[1], **quiet).fit(Demo())
