"""PyTorch Tabular's FT-Transformer, in Lightning's loop, on scikit-learn's breast cancers; the best of its epochs is kept."""

import sys
from pathlib import Path

from pytorch_tabular import TabularModel
from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig
from pytorch_tabular.models import FTTransformerConfig
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

PACKAGE = "pytorch-tabular"
HALF = "score"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
table = load_breast_cancer(as_frame=True).frame
columns = [name.replace(" ", "_") for name in table.columns]
table.columns = columns
rest, test = train_test_split(table, test_size=130, random_state=0, stratify=table.target)
train, validation = train_test_split(rest, test_size=71, random_state=0, stratify=rest.target)
model = TabularModel(
    data_config=DataConfig(target=["target"], continuous_cols=columns[:-1], continuous_feature_transform="quantile_normal"),
    model_config=FTTransformerConfig(
        task="classification", input_embed_dim=16, num_heads=4, num_attn_blocks=2, attn_dropout=0.1, ff_dropout=0.1,
        learning_rate=1e-3,
    ),
    optimizer_config=OptimizerConfig(optimizer="AdamW", optimizer_params={"weight_decay": 1e-3}),
    trainer_config=TrainerConfig(
        batch_size=16, max_epochs=25, accelerator="cpu", seed=0, gradient_clip_val=1.0, progress_bar="simple",
        early_stopping="valid_loss", early_stopping_patience=10, checkpoints="valid_loss", checkpoints_save_top_k=2,
        checkpoints_path=str(folder / "checkpoints"), load_best=True, trainer_kwargs={"default_root_dir": str(folder)},
    ),
)  # fmt: skip
model.fit(train=train, validation=validation)  # it cannot resume
model.save_model(str(folder / "model"))
results = model.evaluate(test, verbose=False)[0]
print(f"test loss {results['test_loss']:.4f}")
print(f"test accuracy {results['test_accuracy']:.4f}")
