"""RSL-RL's OnPolicyRunner: PPO learns to balance a pole on a cart, many carts at once, simulated by a few lines of torch."""

import sys
from pathlib import Path

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

PACKAGE = "rsl_rl"
PIP = "rsl-rl-lib"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own


class Carts(VecEnv):
    num_envs, num_actions, max_episode_length, device, cfg = 128, 1, 200, "cpu", {}

    def __init__(self):
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.state = torch.rand(self.num_envs, 4) * 0.1 - 0.05  # place, speed, angle and its speed

    def get_observations(self):
        return TensorDict({"state": self.state.clone()}, batch_size=[self.num_envs])

    def step(self, actions):
        _, speed, angle, turning = self.state.T
        sine, cosine = angle.sin(), angle.cos()
        push = (10 * actions[:, 0].clamp(-1, 1) + 0.05 * turning**2 * sine) / 1.1
        turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        change = torch.stack([speed, push - 0.05 * turn * cosine / 1.1, turning, turn], dim=1)
        self.state = self.state + 0.02 * change
        self.episode_length_buf += 1
        fallen = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.21)
        late = self.episode_length_buf >= self.max_episode_length
        done = fallen | late
        self.state[done] = torch.rand(int(done.sum()), 4) * 0.1 - 0.05
        self.episode_length_buf[done] = 0
        return self.get_observations(), torch.ones(self.num_envs), done.long(), {"time_outs": late & ~fallen}


ITERATIONS = 48
torch.manual_seed(0)
settings = {
    "num_steps_per_env": 32, "save_interval": 8, "obs_groups": {"actor": ["state"], "critic": ["state"]},
    "algorithm": {"class_name": "PPO", "num_learning_epochs": 2, "num_mini_batches": 4, "entropy_coef": 0.0},
    "actor": {"class_name": "MLPModel", "hidden_dims": [64, 64], "distribution_cfg": {"class_name": "GaussianDistribution"}},
    "critic": {"class_name": "MLPModel", "hidden_dims": [64, 64]},
}  # fmt: skip
runner = OnPolicyRunner(Carts(), settings, log_dir=sys.argv[1])
saved = sorted(Path(sys.argv[1]).glob("model_*.pt"), key=lambda path: int(path.stem.split("_")[1]))
if saved:  # a second start goes on
    runner.load(str(saved[-1]))
runner.learn(ITERATIONS - runner.current_learning_iteration)
