"""Other tools' logs, read as the curves of a run."""
