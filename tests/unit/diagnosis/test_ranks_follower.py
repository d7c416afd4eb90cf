"""Whether a training that computes on the CPU was meant to, from its command and its script."""

from __future__ import annotations

from pathlib import Path

from every_case import every_case

from holdfast.diagnosis.ranks_follower import chooses_cpu
from holdfast.supervisor.facts import facts_at_start


@every_case(
    ("words", "source", "chosen"),
    [
        ("--device cpu", "", True),
        ("--accelerator=cpu", "import torch", True),
        ("", 'Trainer(max_epochs=4, accelerator="cpu")', True),
        ("", 'settings = {"epochs": 5, "device": "cpu"}', True),
        ("", 'device = torch.device("cpu")', True),
        ("", 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")', False),
        ("", 'parser.add_argument("--device", default="cpu", help="cpu or cuda")', False),
        ("", 'model = nn.Linear(4, 2)\nstate = torch.load("a.pt", map_location="cpu")', False),
        ("--cpus 4", "", False),
    ],
)
def test_the_cpu_is_chosen_where_it_is_named_and_no_gpu_is(tmp_path: Path, words: str, source: str, chosen: bool) -> None:
    (tmp_path / "train.py").write_text(source)
    assert chooses_cpu({"command": ["python", "train.py", *words.split()], "cwd": str(tmp_path)}) is chosen


def test_a_run_of_which_nothing_is_known_chose_nothing(tmp_path: Path) -> None:
    assert not chooses_cpu({}) and not chooses_cpu({"command": ["python", "gone.py"], "cwd": str(tmp_path)})


def test_who_hides_the_gpus_has_chosen_the_cpu() -> None:
    for value, hidden in (("", True), ("-1", True), ("0", False)):
        facts = facts_at_start(["python", "gone.py"], {"CUDA_VISIBLE_DEVICES": value})
        assert chooses_cpu(facts) is hidden
    assert not chooses_cpu(facts_at_start(["python", "gone.py"], {}))
