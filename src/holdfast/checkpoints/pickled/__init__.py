"""The parts of the pickle reader: instructions, what known names make, and the plain tree that comes out."""
