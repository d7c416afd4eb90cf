"""The formats that checkpoints come in: one file for each, all of which answer with `Contents`."""
