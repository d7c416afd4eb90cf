"""Flair's ModelTrainer: a recurrent text classifier that tells from which module of Python a line comes."""

import _pydecimal
import argparse
import inspect
import random
import re
import sys
import tarfile
from pathlib import Path

import flair
import torch
from flair.datasets import ClassificationCorpus
from flair.embeddings import DocumentRNNEmbeddings, OneHotEmbeddings
from flair.models import TextClassifier
from flair.tokenization import SpaceTokenizer
from flair.trainers import ModelTrainer

PACKAGE = "flair"
HALF = "score"
ARGUMENTS = "{folder}"  # of each run's own

flair.set_seed(0)
texts = []
for module in (argparse, _pydecimal, tarfile):
    lines = (" ".join(re.findall(r"\w+|\S", line)) for line in inspect.getsource(module).splitlines())
    texts += [f"__label__{module.__name__} {line}\n" for line in lines if len(line) > 20]
random.shuffle(texts)
folder = Path(sys.argv[1], "corpus")
folder.mkdir(parents=True, exist_ok=True)
for name, part in {"train": texts[:1600], "dev": texts[1600:2000], "test": texts[2000:2500]}.items():
    (folder / f"{name}.txt").write_text("".join(part), encoding="utf-8")

corpus = ClassificationCorpus(folder, tokenizer=SpaceTokenizer(), memory_mode="full")
embeddings = DocumentRNNEmbeddings([OneHotEmbeddings.from_corpus(corpus, embedding_length=64)], hidden_size=64)
model = TextClassifier(embeddings, label_type="class", label_dictionary=corpus.make_label_dictionary(label_type="class"))
ModelTrainer(model, corpus).train(
    Path(sys.argv[1], "model"),
    optimizer=torch.optim.Adam,
    learning_rate=2e-3,
    mini_batch_size=32,
    max_epochs=6,
    embeddings_storage_mode="none",
)
