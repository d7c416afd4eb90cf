"""What runs in a training process while `holdfast repro` looks for the first thing that differs between two runs."""
