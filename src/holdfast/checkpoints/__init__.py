"""Checkpoints: written whole or not at all, verified, opened without running what is inside."""
