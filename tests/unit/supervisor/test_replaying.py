from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.signals.run_folder import RunFolder
from holdfast.supervisor.replaying import choose


def refused(run: RunFolder) -> UsageError:
    with pytest.raises(UsageError) as caught:
        choose(run, None)
    return caught.value


def test_a_run_that_only_observed_is_told_which_policy_saves_batches_with_its_own_command(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "a", policy="observe", command=["python", "my train.py", "--lr", "1"])
    assert refused(run).fix.endswith("holdfast run --policy guard -- python 'my train.py' --lr 1")


@pytest.mark.parametrize("policy", ["guard", "heal"])
def test_a_run_is_never_advised_the_policy_that_it_had(policy: str, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "a", policy=policy, command=["python", "train.py"])
    error = refused(run)
    assert "none of its updates was skipped" in error.problem and "--policy" not in error.fix
    run.journal.write("finding", code="non-finite-gradient", step=7, evidence={"batch": {"not_saved": ["larger than 256 MB"]}})
    run.journal.write("action", action="skip-batch", step=7, state="done")
    error = refused(run)
    assert "the update of step 7 was skipped: larger than 256 MB" in error.problem and "--policy" not in error.fix
