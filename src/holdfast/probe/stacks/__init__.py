"""Stacks of every thread of every process of a run, taken from outside, and what they mean."""
