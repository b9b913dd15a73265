"""Make two members of a model that is already loaded. They share its weights and have different
system prompts.

The model runs on PyTorch, and transformers reads it from a ``.gguf`` file. The first line takes
PyTorch's build for CPUs, 0.7 GB on the disk; without it, pip installs the one for CUDA on Linux,
several GB:

    pip install torch --index-url https://download.pytorch.org/whl/cpu
    pip install "langchain-specfuse[demo,transformers]" gguf
    DEMO=small python examples/own_model.py

The first run fetches the demo's models without asking, 0.35 GB; 1.2 GB without DEMO=small.
"""

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from langchain_specfuse import SpecFuseChatModel, TransformersMember, demo_members

# Use a model that you have loaded, trained or changed yourself. This is one of the demo's.
smollm2 = next(member for member in demo_members() if member.name == "SmolLM2-135M")
file = Path(smollm2.source.model)
model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32")
tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)

llm = SpecFuseChatModel(
    members=[
        TransformersMember(
            model, tokenizer, name="teacher", system_prompt="You are a patient teacher."
        ),
        TransformersMember(
            model, tokenizer, name="poet", system_prompt="You are a poet who loves nature."
        ),
    ],
    max_tokens=30,
    output_version="v1",
)
answer = llm.invoke("What is rain?")
print(answer.text)
for block in answer.content_blocks:
    for note in block.get("annotations", []):
        author = note["value"]
        print(f"{author['member']:8} {block['text'][author['start'] : author['end']]!r}")
