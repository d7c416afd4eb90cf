"""How much a training needs and what fits: measured at a few small batches, predicted for all others."""
