"""The KV cache of one model for many queries."""
