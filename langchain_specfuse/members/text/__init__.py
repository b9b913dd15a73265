"""What every engine needs to know of text: seams between tokenizers, chat templates, tool prompts,
thoughts."""
