"""Symptoms that show in the tables of a run of ours, live or afterwards: one file each, pure functions of a `RunView`."""
