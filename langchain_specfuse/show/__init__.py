"""Pictures of a run, made from its rounds alone."""
