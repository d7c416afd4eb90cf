"""stanza's POS tagger: learns the tags and features of a made-up language, whose endings mean something else in other places."""

import random
import sys
from pathlib import Path

from stanza.models import tagger

PACKAGE = "stanza"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own
CASES = {"Nom": "", "Acc": "n", "Gen": "sh"}
PERSONS = {"1": "m", "2": "sh", "3": "t"}  # so that an ending in sh is of a noun or of a verb

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
choice = random.Random(0)
stems = sorted({"".join(choice.choice("ptkslmrv") + choice.choice("aeiou") for _ in range(2)) for _ in range(90)})
adverbs = [f"{stem}lo" for stem in stems[::9]]


def noun(case):
    """One that may have adjectives, which agree with it."""
    number, ending = choice.choice((("Sing", ""), ("Plur", "i")))
    features = f"Case={case}|Number={number}"
    if choice.random() < 0.4:
        yield choice.choice(stems) + "ra" + ending + CASES[case], "ADJ", features
    yield choice.choice(stems) + ending + CASES[case], "NOUN", features


def sentence():
    """The verb comes second, or first in a question; the stems of verbs and nouns are the same."""
    person, tense = choice.choice(list(PERSONS)), choice.choice((("Pres", ""), ("Past", "u")))
    verb = choice.choice(stems) + tense[1] + PERSONS[person], "VERB", f"Person={person}|Tense={tense[0]}"
    asked = choice.random() < 0.3
    words = [verb, *noun("Nom")] if asked else [*noun("Nom"), verb]
    if choice.random() < 0.5:
        words.append((choice.choice(adverbs), "ADV", "_"))
    words += noun("Acc")
    if choice.random() < 0.5:
        words += [("ve", "ADP", "_"), *noun("Gen")]
    return [*words, ("?" if asked else ".", "PUNCT", "_")]


for name, count in (("train", 1500), ("dev", 150), ("test", 300)):
    lines = []
    for _ in range(count):
        lines += [
            f"{place}\t{word}\t_\t{tag}\t{tag}\t{features}\t{place - 1}\tdep\t_\t_"
            for place, (word, tag, features) in enumerate(sentence(), 1)
        ] + [""]
    (folder / f"{name}.conllu").write_text("\n".join(lines) + "\n")

settings = [
    "--shorthand", "xx_made", "--lang", "xx", "--save_dir", str(folder), "--no_pretrain", "--cpu", "--seed", "1234",
]  # fmt: skip
tagger.main([  # it cannot resume, and saves the model whenever it is the best one so far
    *settings, "--train_file", str(folder / "train.conllu"), "--eval_file", str(folder / "dev.conllu"), "--max_steps", "450",
    "--eval_interval", "50", "--fix_eval_interval", "--batch_size", "12", "--dropout", "0.2", "--word_dropout", "0.1",
    "--hidden_dim", "64", "--char_hidden_dim", "64", "--char_emb_dim", "24", "--deep_biaff_hidden_dim", "64",
    "--composite_deep_biaff_hidden_dim", "32", "--word_cutoff", "3",
])  # fmt: skip
tagger.main([*settings, "--mode", "predict", "--eval_file", str(folder / "test.conllu")])
