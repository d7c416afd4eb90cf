"""How fast a loader is by its settings, measured in a process of its own; where its time goes; the best setting that fits."""
