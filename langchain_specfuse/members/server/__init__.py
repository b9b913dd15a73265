"""Models on servers, over HTTP."""
