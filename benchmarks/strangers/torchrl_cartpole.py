"""TorchRL's DQNTrainer: a Q-network learns to balance gymnasium's CartPole, tested and saved every 800 frames."""

import sys
from pathlib import Path

import torch
from tensordict.nn import TensorDictSequential
from torchrl.checkpoint import Checkpoint, CheckpointRotation
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import Compose, GymEnv, InitTracker, RewardSum, TransformedEnv
from torchrl.envs.utils import ExplorationType
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate
from torchrl.record import CSVLogger
from torchrl.trainers import LogValidationReward
from torchrl.trainers.algorithms import DQNTrainer

PACKAGE = "torchrl"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

FRAMES = 8000


def cartpole(seed):
    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), Compose(InitTracker(), RewardSum()))
    env.set_seed(seed)
    return env


class PrintedTests(LogValidationReward):
    def __call__(self, batch):
        logs = super().__call__(batch)
        if logs:
            print(f"frame {trainer.collected_frames}: mean test return {logs['total_r_evaluation']:.1f}", flush=True)
        return logs


folder = Path(sys.argv[1]).absolute()
torch.manual_seed(0)
env = cartpole(0)
network = QValueActor(MLP(in_features=4, out_features=2, num_cells=[64, 64]), in_keys=["observation"], spec=env.action_spec)
explore = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=4000)
policy = TensorDictSequential(network, explore)
loss = DQNLoss(network, action_space="categorical", delay_value=True)
loss.make_value_estimator(gamma=0.99)
rotation = CheckpointRotation(folder / "checkpoints", keep_last=3)
trainer = DQNTrainer(
    collector=Collector(env, policy, frames_per_batch=100, total_frames=FRAMES, init_random_frames=500),
    total_frames=FRAMES, frame_skip=1, optim_steps_per_batch=15, loss_module=loss, target_net_updater=SoftUpdate(loss, eps=0.98),
    optimizer=torch.optim.Adam(loss.parameters(), lr=1e-3), clip_norm=10.0, greedy_module=explore, seed=0,
    replay_buffer=ReplayBuffer(storage=LazyTensorStorage(FRAMES), batch_size=64), episode_reward_key="episode_reward",
    logger=CSVLogger("dqn", log_dir=str(folder)), log_interval=99, progress_bar=False,
    checkpoint=Checkpoint(), checkpoint_rotation=rotation, save_trainer_interval=799,
)  # fmt: skip
tests = PrintedTests(
    record_interval=8, record_frames=1000, policy_exploration=network, environment=cartpole(1000),
    exploration_type=ExplorationType.DETERMINISTIC,
)  # fmt: skip
tests.register(trainer)
if rotation.latest():  # a second start goes on from the newest checkpoint
    trainer.load_from_file(rotation.latest())
trainer.train()
