"""A program that breaks promises: see `main`."""
