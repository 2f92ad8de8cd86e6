"""The parts of the molecules example."""
