"""Data before the run: what formats it comes in, and what is wrong with it."""
