"""How `choose` weighs the ways to continue: what went wrong and when, which checkpoints are from before it, and the words."""
