"""Holdfast's own trainer: one loop for every task, each task one folder."""
