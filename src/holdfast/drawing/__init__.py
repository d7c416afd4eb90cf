"""The pages that are written as files: all templates, and the one stylesheet that they share."""
