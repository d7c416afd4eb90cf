"""Policies of your own: `holdfast run --policy examples/policies/save_on_decline.py -- python train.py`.

A policy gets a diagnosis and the earlier actions, and returns an action or None. The first policy in the list that returns
an action decides.
"""

from dataclasses import dataclass

from holdfast.recovery import Action, LowerLearningRate, RollBack


@dataclass(frozen=True)
class SaveOnDecline:
    """Save a checkpoint when the validation metric starts to fall, at most once in a thousand steps."""

    def decide(self, diagnosis, past):
        if "metric-decline" not in diagnosis.codes or past.count("save-checkpoint", since=diagnosis.step - 1000):
            return None
        return Action("save-checkpoint", step=diagnosis.step, because="metric-decline")


policies = [RollBack(lr_factor=0.5), SaveOnDecline(), LowerLearningRate(factor=0.9)]
