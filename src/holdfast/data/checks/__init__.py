"""One file per kind of fault: what it is called, how bad it is, what to do, and a pure function that finds it."""
