"""What all tests share: how Hypothesis works here."""

from hypothesis import settings

settings.register_profile("here", deadline=None, max_examples=60)
settings.load_profile("here")
