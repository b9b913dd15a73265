"""Models that are in memory already, and one copy of weights as two members with different system prompts."""

from transformers import AutoModelForCausalLM, AutoTokenizer

from langchain_specfuse import SpecFuseChatModel, TransformersMember, demo_members

# Whatever you have loaded, trained or changed yourself. Here: a model of the demo, from its folder.
folder = demo_members()[0].source.model
model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)

llm = SpecFuseChatModel(
    members=[
        TransformersMember(model, tokenizer, name="teacher", system_prompt="You are a patient teacher."),
        TransformersMember(model, tokenizer, name="poet", system_prompt="You are a poet who loves nature."),
    ],
    max_tokens=30,
    min_members=2,
    output_version="v1",
)
answer = llm.invoke("What is rain?")
print(answer.text)
for block in answer.content_blocks:
    for note in block.get("annotations", []):
        author = note["value"]
        print(f"{author['member']:8} {block['text'][author['start'] : author['end']]!r}")
