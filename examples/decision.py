"""Two small real models decide by vote: no text is written, and what they disagree on goes to a person."""

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
    # How sure, and how far apart: two signals. Find the thresholds on notes of your own whose teams you know.
    sure = verdict.confidence > 0.5 and verdict.dissent < 0.1
    print(f"{verdict.label if sure else 'a person':10} {verdict.confidence:.2f} dissent {verdict.dissent:.2f}  {note}")
    for name, shares in verdict.by_member.items():
        told = ", ".join(f"{team} {share:.2f}" for team, share in shares.items())
        print(f"    {name}: {told} (of all answers: {verdict.mass[name]:.4f})")
