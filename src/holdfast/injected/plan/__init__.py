"""What runs in a training process while `holdfast plan` measures what it needs."""
