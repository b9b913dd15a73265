"""Campaigns that take minutes or hours, by hand with `scripts/torture`; what is short of each is among
the tests."""
