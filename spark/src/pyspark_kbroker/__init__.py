"""Spark looks here for a data source by name. Imports stay trivial: an error in one such package hides the sources of all."""
