"""denoising-diffusion-pytorch's Trainer: a small U-Net learns to draw scikit-learn's digits; sampled and saved on the way."""

import sys
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_digits

try:
    import torchvision  # noqa: F401
except RuntimeError:  # operator torchvision::nms does not exist: declared, it is never called
    declared = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet

PACKAGE = "denoising_diffusion_pytorch"
PIP = "denoising-diffusion-pytorch"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
images, results = folder / "images", folder / "results"
images.mkdir(parents=True, exist_ok=True)
pixels = load_digits().images / 16
for number, image in enumerate(pixels[:1500]):
    Image.fromarray((image * 255).astype("uint8")).save(images / f"{number:04d}.png")
test = torch.tensor(pixels[1500:]).float()[:, None]

torch.manual_seed(0)
model = Unet(dim=16, dim_mults=(1,), channels=1, attn_heads=2, attn_dim_head=16, flash_attn=False)
diffusion = GaussianDiffusion(model, image_size=8, timesteps=200, sampling_timesteps=10)
trainer = Trainer(
    diffusion, str(images), results_folder=str(results), train_batch_size=16, train_lr=2e-3, train_num_steps=300, ema_decay=0.95,
    save_and_sample_every=60, num_samples=16, augment_horizontal_flip=False, calculate_fid=False,
)  # fmt: skip
saved = [int(path.stem.split("-")[1]) for path in results.glob("model-*.pt")]
if saved:
    trainer.load(max(saved))
trainer.train()

trainer.ema.ema_model.eval()
torch.manual_seed(1)
with torch.no_grad():
    loss = sum(trainer.ema.ema_model(test).item() for _ in range(5)) / 5
print(f"test loss {loss:.4f}")
