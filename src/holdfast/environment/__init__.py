"""The machine before the run: what it is, what is wrong with it, what would mend it. Nothing here changes it."""
