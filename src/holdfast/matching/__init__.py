"""What differs between a checkpoint and a model or another checkpoint, and what that means: pure, from names and shapes."""
