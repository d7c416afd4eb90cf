"""Contact sheets: samples of a data set drawn with what is said of them, the suspicious ones first."""
