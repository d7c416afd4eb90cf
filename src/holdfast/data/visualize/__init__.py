"""Samples of a data set on one page, drawn with what is said of them, the suspicious ones first."""
