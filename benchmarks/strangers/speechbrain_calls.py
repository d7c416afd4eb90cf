"""SpeechBrain's Brain: an x-vector network that recognizes eight bird calls in noise, checkpoints of its own included."""

import sys

import speechbrain as sb
import torch
from speechbrain.lobes.features import Fbank
from speechbrain.lobes.models.Xvector import Classifier, Xvector
from torch.utils.data import TensorDataset

PACKAGE = "speechbrain"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own


def record(count):
    """Less than half a second each: a tone that rises or falls from a pitch of its class, and noise."""
    labels, seconds = torch.randint(8, (count, 1)), torch.arange(6400) / 16000
    pitch, slope = 500 + 400 * (labels // 2) + 100 * torch.randn(count, 1), 1600 * (labels % 2) - 800
    phase = 6.28 * (pitch * seconds + slope * seconds**2 / 2 + torch.rand(count, 1))
    return TensorDataset(0.3 * torch.sin(phase) + 0.7 * torch.randn(count, 6400), labels)


class CallBrain(sb.Brain):
    def compute_forward(self, batch, stage):  # noqa: ARG002
        features = self.hparams.compute_features(batch[0].to(self.device))
        return self.modules.classifier(self.modules.embedding((features - features.mean(1, keepdim=True)) / 10))

    def compute_objectives(self, predictions, batch, stage):  # noqa: ARG002
        return sb.nnet.losses.nll_loss(predictions, batch[1].to(self.device))

    def on_stage_end(self, stage, stage_loss, epoch=None):
        print(f"epoch {epoch}, {stage.name}: loss {stage_loss:.4f}")
        if stage == sb.Stage.VALID:
            self.checkpointer.save_and_keep_only(meta={"loss": stage_loss}, min_keys=["loss"])


torch.manual_seed(0)
training, validation = record(1600), record(200)
layers = {"tdnn_blocks": 3, "tdnn_channels": [64, 64, 128], "tdnn_kernel_sizes": [5, 3, 1], "tdnn_dilations": [1, 2, 1]}
modules = {"embedding": Xvector(in_channels=24, lin_neurons=64, **layers)}
modules["classifier"] = Classifier((None, None, 64), lin_neurons=64, out_neurons=8)
counter = sb.utils.epoch_loop.EpochCounter(limit=8)
brain = CallBrain(
    modules=modules,
    opt_class=lambda parameters: torch.optim.Adam(parameters, lr=5e-4),
    hparams={"compute_features": Fbank(n_mels=24)},
    checkpointer=sb.utils.checkpoints.Checkpointer(sys.argv[1], recoverables={**modules, "counter": counter}),
)
loading = {"train_loader_kwargs": {"batch_size": 32, "shuffle": True}, "valid_loader_kwargs": {"batch_size": 100}}
brain.fit(counter, training, validation, **loading)
