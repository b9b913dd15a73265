"""What llama.cpp and transformers share: members, weights, caches, batches, drafts, scores.

A question's way: ``member`` takes jobs, ``batch`` forms batches of them, ``batch`` turns each into
tokens, ``drafting`` writes drafts, ``cache`` reads, and an engine computes the logits.
"""
