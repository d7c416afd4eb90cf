"""Policies of your own: `holdfast run --policy examples/policies/save_before_the_night.py -- python train.py`.

A policy looks at a diagnosis and at what was done before, and answers with an action or with None. The first one in the
list that answers decides.
"""

from dataclasses import dataclass

from holdfast.recovery import Action, LowerLearningRate, RollBack


@dataclass(frozen=True)
class SaveBeforeTheNight:
    """Keep a checkpoint whenever the validation metric has begun to fall, once in a thousand steps."""

    def decide(self, diagnosis, past):
        if "metric-decline" not in diagnosis.codes or past.count("save-checkpoint", since=diagnosis.step - 1000):
            return None
        return Action("save-checkpoint", step=diagnosis.step, because="metric-decline")


policies = [RollBack(lr_factor=0.5), SaveBeforeTheNight(), LowerLearningRate(factor=0.9)]
