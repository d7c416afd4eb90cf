"""stable-baselines3's loop: a policy that balances a pole, learned by PPO."""

import stable_baselines3

PACKAGE = "stable-baselines3"
HALF = "score"

stable_baselines3.PPO("MlpPolicy", "CartPole-v1", n_steps=256, batch_size=64, seed=0, verbose=1, device="cpu").learn(6000)
