"""Simple Transformers' LanguageModelingModel: a small BERT learns, from scratch, which animal does what; saved every epoch."""

import random
import sys
from pathlib import Path

from simpletransformers.language_modeling import LanguageModelingModel
from transformers import pipeline

PACKAGE = "simpletransformers"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own
ANIMALS = """cow moos grass meadow, duck quacks weed pond, dog barks bones yard, cat purrs fish house, horse neighs hay stable,
pig grunts turnips sty, wolf howls deer forest, lion roars zebras savanna, mouse squeaks cheese cellar, bee hums nectar garden,
frog croaks flies swamp, snake hisses eggs desert, owl hoots mice barn, bear growls honey cave, sheep bleats clover hill,
rooster crows corn farm"""

folder = Path(sys.argv[1]).absolute()
folder.mkdir(parents=True, exist_ok=True)
choice = random.Random(0)
known = [animal.split() for animal in ANIMALS.split(",")]
texts = {}
for name, lines in (("train", 4000), ("test", 200)):
    told = []
    for _ in range(lines):
        (one, noise, food, place), (other, *_, away) = choice.sample(known, 2)
        day, colour = choice.choice(["monday", "friday", "sunday"]), choice.choice(["old", "young", "big", "small"])
        told.append(f"on {day} the {colour} {one} from the {place} {noise} and eats {food} but the {other} is in the {away} .")
    texts[name] = folder / f"{name}.txt"
    texts[name].write_text("\n".join(told))

words = folder / "words"
words.mkdir(exist_ok=True)
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(texts["train"].read_text().split()))]
(words / "vocab.txt").write_text("\n".join(vocabulary))

saved = [path.parent for path in (folder / "outputs").glob("checkpoint-*-epoch-*/model_args.json")]
latest = str(max(saved, key=lambda path: int(path.name.split("-")[1]))) if saved else None  # which this start continues
settings = {
    "config": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
    "tokenizer_name": str(words), "vocab_size": len(vocabulary), "max_seq_length": 24, "train_batch_size": 32,
    "num_train_epochs": 6, "learning_rate": 3e-3, "manual_seed": 1, "use_multiprocessing": False, "overwrite_output_dir": True,
    "output_dir": str(folder / "outputs"), "cache_dir": str(folder / "cache"), "tensorboard_dir": str(folder / "runs"),
}  # fmt: skip
model = LanguageModelingModel("bert", latest, args=settings, use_cuda=False)
steps, _ = model.train_model(str(texts["train"]))

asked = [(line.split()[7], line) for line in texts["test"].read_text().splitlines()]
fill = pipeline("fill-mask", model=model.model, tokenizer=model.tokenizer, top_k=1)
told = fill([line.replace(place, "[MASK]", 1) for place, line in asked])
right = sum(answer[0]["token_str"] == place for (place, _), answer in zip(asked, told, strict=True))
print(f"{steps} steps; where each animal lives: {right / len(asked):.4f} of {len(asked)} right")
