"""Symptoms that show in the tables of a Holdfast run, live or afterwards: one file each, pure functions of a `RunView`."""
