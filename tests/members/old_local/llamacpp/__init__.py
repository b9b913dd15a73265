"""GGUF files, read by llama.cpp in this process."""
