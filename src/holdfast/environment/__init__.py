"""The machine before the run: what it is, what is wrong with it, how to fix it. Nothing here changes it."""
