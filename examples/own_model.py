"""A model that is already loaded, as two members that share its weights and have different system
prompts."""

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from langchain_specfuse import SpecFuseChatModel, TransformersMember, demo_members

# A model that you have loaded, trained or changed yourself. Here: one of the demo, unpacked by
# transformers.
file = Path(next(one.source.model for one in demo_members() if one.name == "SmolLM2-135M"))
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
