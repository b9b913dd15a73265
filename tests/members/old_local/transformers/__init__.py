"""Models that transformers loads, in this process."""
