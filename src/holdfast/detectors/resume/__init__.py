"""Whether a resumed training continues where the run before stopped, and if not, what of its state was probably not restored."""
