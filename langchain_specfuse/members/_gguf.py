"""Unpacks a GGUF file into a folder of safetensors that opens at once: unpacking takes tens of seconds, each time.

Knows one file and one empty folder; where they are kept, and whether they are still good, is for the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def unpack(gguf: Path, folder: Path) -> None:
    """Write the model and its tokenizer to ``folder``, with the very numbers that loading the GGUF file gives.

    In float32: rounding to bfloat16 would halve the size, but move every logit a little, and such weights could not be
    read from disk in place where float32 is computed.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _quiet():
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        # All weights are plain now, but transformers still calls the model quantized and would not save it.
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        try:
            model.save_pretrained(folder)
        except SafetensorError as error:  # so a full disk is told by who writes weights
            raise OSError(f"the weights could not be written: {error}") from error
        tokenizer.save_pretrained(folder)


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no advice from transformers: the caller says what is going on in one line."""
    from transformers.utils import logging

    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
