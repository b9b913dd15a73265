"""The stack of members in this process before it was rebuilt, for comparison."""
