"""Text handling that all engines share: seams between tokenizers, chat templates, tool prompts and
reasoning."""
