"""One file per format: does it look like it, and what is in it."""
