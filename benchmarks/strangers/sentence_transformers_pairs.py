"""sentence-transformers' loop: a small BERT that learns which two sentences say the same."""

import random
import sys

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, set_seed

PACKAGE = "sentence-transformers"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

set_seed(0)
drawn = random.Random(0)
names = [f"{what}{number}" for what in ("dog", "car", "tree", "song") for number in range(40)]
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "sees", "is", "seen", "by", *names]
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
BertModel(BertConfig(vocab_size=len(words), **size)).save_pretrained(f"{sys.argv[1]}/bert")
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(f"{sys.argv[1]}/bert")

both = [drawn.sample(names, 2) for _ in range(3000)]
pairs = {"anchor": [f"the {a} sees a {b}" for a, b in both], "positive": [f"a {b} is seen by the {a}" for a, b in both]}
encoder = Transformer(f"{sys.argv[1]}/bert")
model = SentenceTransformer(modules=[encoder, Pooling(64)], device="cpu")
settings = SentenceTransformerTrainingArguments(
    f"{sys.argv[1]}/out", max_steps=250, per_device_train_batch_size=32, learning_rate=1e-4, logging_steps=25, use_cpu=True,
    report_to="none",
)  # fmt: skip
loss = losses.MultipleNegativesRankingLoss(model)
SentenceTransformerTrainer(model, settings, train_dataset=Dataset.from_dict(pairs), loss=loss).train()
