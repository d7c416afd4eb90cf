"""skrl's SequentialTrainer: PPO learns to balance gymnasium's CartPole, saved and tested every 250 timesteps."""

import sys
from pathlib import Path

import gymnasium
import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.resources.preprocessors.torch import RunningStandardScaler
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import nn

PACKAGE = "skrl"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

TIMESTEPS = 6000  # of eight environments at once
INTERVAL = 250


class Policy(CategoricalMixin, Model):
    def __init__(self, **spaces):
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def compute(self, inputs, _role):
        return self.net(inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    def __init__(self, **spaces):
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def compute(self, inputs, _role):
        return self.net(inputs["observations"]), {}


class TestedPPO(PPO):
    def post_interaction(self, *, timestep, timesteps):
        super().post_interaction(timestep=done + timestep, timesteps=done + timesteps)  # counting on from earlier starts

    def write_checkpoint(self, *, timestep, timesteps):
        super().write_checkpoint(timestep=timestep, timesteps=timesteps)
        score = self.tested()
        self.track_data("Test / Mean return", score)
        print(f"timestep {timestep}: mean test return {score:.1f}", flush=True)

    @torch.no_grad()
    def tested(self):
        """The mean return of twenty episodes in which the likelier action is always taken."""
        tests = gymnasium.make_vec("CartPole-v1", num_envs=20, vectorization_mode="sync")
        (seen, _), alive, total = tests.reset(seed=1000), torch.ones(20, dtype=torch.bool), torch.zeros(20)
        while alive.any():
            logits, _ = self.policy.compute({"observations": self._observation_preprocessor(torch.tensor(seen))}, "policy")
            seen, reward, terminated, truncated, _ = tests.step(logits.argmax(dim=-1).numpy())
            total += torch.tensor(reward) * alive
            alive &= ~torch.tensor(terminated | truncated)
        return total.mean().item()


folder = Path(sys.argv[1]).absolute()
saved = sorted(int(path.stem.removeprefix("agent_")) for path in folder.glob("ppo/checkpoints/agent_*.pt"))
done = saved[-1] if saved else 0
set_seed(0)
env = wrap_env(gymnasium.make_vec("CartPole-v1", num_envs=8, vectorization_mode="sync"), wrapper="gymnasium")
spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": "cpu"}
settings = PPO_CFG(
    rollouts=125, learning_epochs=6, mini_batches=4, learning_rate=5e-4, entropy_loss_scale=0.01, time_limit_bootstrap=True,
    observation_preprocessor=RunningStandardScaler,
    observation_preprocessor_kwargs={"size": env.observation_space, "device": "cpu"},
    value_preprocessor=RunningStandardScaler, value_preprocessor_kwargs={"size": 1, "device": "cpu"},
    experiment={
        "directory": str(folder), "experiment_name": "ppo", "write_interval": 50, "checkpoint_interval": INTERVAL,
    },
)  # fmt: skip
models = {"policy": Policy(**spaces), "value": Value(**spaces)}
agent = TestedPPO(models=models, memory=RandomMemory(memory_size=125, num_envs=8, device="cpu"), cfg=settings, **spaces)
if done:  # a second start goes on from the newest checkpoint
    agent.load(str(folder / f"ppo/checkpoints/agent_{done}.pt"))
plan = {"timesteps": TIMESTEPS - done, "headless": True, "disable_progressbar": True}
trainer = SequentialTrainer(env=env, agents=agent, cfg=plan)
trainer.train()
print(f"mean test return after {TIMESTEPS} timesteps: {agent.tested():.1f}")
