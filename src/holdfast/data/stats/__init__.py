"""Statistics of data: what `holdfast stats` counts and draws, for every format that `holdfast validate` reads."""
