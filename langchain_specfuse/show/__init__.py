"""Show a run in a terminal, in a notebook or as an HTML page, from its rounds alone."""
