"""The parts of `holdfast.load`: what must not be loaded, the weights, and the rest of a training."""
