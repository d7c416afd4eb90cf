"""Whether a resumed training goes on where the run before stopped, and if not, what of its state was probably not restored."""
