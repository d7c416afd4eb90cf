"""imitation's BC: clones a hand-written controller that swings Gymnasium's pendulum up and holds it there."""

import sys
from pathlib import Path

import numpy as np
from imitation.algorithms import bc
from imitation.data import rollout
from imitation.data.wrappers import RolloutInfoWrapper
from imitation.util import logger
from imitation.util.util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import set_random_seed

PACKAGE = "imitation"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
set_random_seed(0)
rng = np.random.default_rng(0)
venv = make_vec_env("Pendulum-v1", rng=rng, n_envs=8, post_wrappers=[lambda env, _: RolloutInfoWrapper(env)])


def controller(observations, states, starts):  # noqa: ARG001
    """Gives the pendulum the energy that it has when upright, and near the top holds it like a spring with a damper."""
    cosine, sine, speed = observations.T
    swing = np.where(speed < 0, -1, 1) * (15 * (1 - cosine) - speed**2 / 2)
    hold = -10 * np.arctan2(sine, cosine) - 2.6 * speed
    torque = np.where(cosine > 0.9, hold, swing)
    return np.clip(torque, -2, 2)[:, None].astype(np.float32), None


shown = rollout.rollout(controller, venv, rollout.make_sample_until(min_episodes=80), rng=rng)
print(f"mean return of the controller: {rollout.rollout_stats(shown)['return_mean']:.1f}")

spaces = {"observation_space": venv.observation_space, "action_space": venv.action_space}
trainer = bc.BC(
    **spaces, demonstrations=rollout.flatten_trajectories(shown), rng=rng, batch_size=64, device="cpu",
    policy=ActorCriticPolicy(**spaces, lr_schedule=lambda _: float("inf"), net_arch=[64, 64]),  # BC has an optimizer of its own
    custom_logger=logger.configure(folder / "log", ["log", "csv"]),
)  # fmt: skip
for stage in range(5):  # it cannot resume
    trainer.train(n_epochs=4, log_interval=100, progress_bar=False)
    trainer.policy.save(folder / f"policy_{stage}.zip")
    mean, deviation = evaluate_policy(trainer.policy, venv, n_eval_episodes=24)
    print(f"stage {stage}: mean return {mean:.1f} +- {deviation:.1f}")
