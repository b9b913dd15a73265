"""What engines in this process share, on numpy logits: batches, drafts, scores, masks, thoughts,
prefixes, memory."""
