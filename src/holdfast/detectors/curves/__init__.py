"""Symptoms in whole curves: what shows over epochs and evaluations, in a live run or in anybody's log. One file for each."""
