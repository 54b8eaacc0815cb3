"""Data of the project: accelerators, clusters, models, named questions and their proven answers."""
