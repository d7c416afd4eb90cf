"""Tianshou's offline trainer: a network that swings a pendulum up, learned from a controller's recorded episodes."""

import sys

import gymnasium
import numpy as np
import torch
from tianshou.algorithm.imitation.imitation_base import ImitationPolicy, OfflineImitationLearning
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, ReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OfflineTrainerParams
from tianshou.utils import TensorboardLogger
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorDeterministic
from torch.utils.tensorboard import SummaryWriter

PACKAGE = "tianshou"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own


def controller(cosine, sine, speed):
    if cosine > 0.9:  # near the top: hold it
        return -12 * np.arctan2(sine, cosine) - 3 * speed
    return 2 * np.sign(speed * (15 - 0.5 * speed**2 - 15 * cosine) or 1)  # else give it the energy of the top


np.random.seed(0)
torch.manual_seed(0)
env, buffer = gymnasium.make("Pendulum-v1"), ReplayBuffer(3200)
for episode in range(16):
    seen, done = env.reset(seed=episode)[0], False
    while not done:
        act = np.clip([controller(*seen)], -2, 2).astype(np.float32)
        after, reward, terminated, done, info = env.step(act)
        buffer.add(Batch(obs=seen, act=act, rew=reward, terminated=terminated, truncated=done, obs_next=after, info=info))
        seen = after

actor = ContinuousActorDeterministic(preprocess_net=Net(state_shape=3, hidden_sizes=[256] * 3), action_shape=1, max_action=2.0)
policy = ImitationPolicy(actor=actor, action_space=env.action_space)
algorithm = OfflineImitationLearning(policy=policy, optim=AdamOptimizerFactory(lr=1e-3))
tests = DummyVectorEnv([lambda: gymnasium.make("Pendulum-v1")])
tests.seed(0)
logger = TensorboardLogger(SummaryWriter(sys.argv[1]), update_interval=10)
settings = OfflineTrainerParams(
    buffer=buffer, test_collector=Collector(algorithm, tests), logger=logger,
    max_epochs=4, epoch_num_steps=100, batch_size=256, test_step_num_episodes=1,
    save_best_fn=lambda best: torch.save(best.state_dict(), f"{sys.argv[1]}/policy.pth"),
)  # fmt: skip
result = algorithm.run_training(settings)
print(f"best test reward {result.best_reward:.0f}")
