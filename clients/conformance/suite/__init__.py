"""The conformance suite: see `main`."""
