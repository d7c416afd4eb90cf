"""d3rlpy's online loop: a pole balanced by double DQN from a replay buffer."""

import sys

import d3rlpy
import gymnasium

PACKAGE = "d3rlpy"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

d3rlpy.seed(0)
env, eval_env = gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1")
d3rlpy.envs.seed_env(env, 0)
d3rlpy.envs.seed_env(eval_env, 1)
dqn = d3rlpy.algos.DoubleDQNConfig(batch_size=32, learning_rate=1e-3, target_update_interval=100).create(device="cpu:0")
dqn.fit_online(
    env,
    buffer=d3rlpy.dataset.create_fifo_replay_buffer(limit=10000, env=env),
    explorer=d3rlpy.algos.LinearDecayEpsilonGreedy(duration=1500),
    n_steps=2500,
    n_steps_per_epoch=500,
    update_start_step=500,
    eval_env=eval_env,
    eval_n_trials=3,
    logger_adapter=d3rlpy.logging.FileAdapterFactory(root_dir=sys.argv[1]),
)
