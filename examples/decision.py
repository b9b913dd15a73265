"""A decision: the members vote on labels, nothing is written. A note that they are unsure about goes to a person."""

from langchain_specfuse import decide, demo_members

members = demo_members()
TEAMS = ["billing", "technical", "sales"]
NOTES = [
    "I was charged twice for my subscription, please send the money back.",
    "The app crashes whenever I open it.",
    "hm",
]

for note in NOTES:
    question = f"A customer writes: {note}\nWhich team should answer: billing, technical or sales?"
    verdict = decide(question, TEAMS, members=members)
    # Choose the threshold with notes of your own whose teams you know.
    team = verdict.label if verdict.margin > 0.3 else "a person"
    print(f"{team:10} confidence {verdict.confidence:.2f}, margin {verdict.margin:.2f}: {note}")
    for name, shares in verdict.by_member.items():
        print(f"    {name}:", ", ".join(f"{label} {share:.2f}" for label, share in shares.items()))
