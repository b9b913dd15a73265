"""Follow the votes: print every round, every change of the weights, and every departure."""

from langchain_specfuse import Method, ScriptedMember, SpecFuseCallbackHandler, SpecFuseChatModel
from langchain_specfuse.chat.callbacks import ExitEvent, RoundEvent, WeightsEvent


class Reporter(SpecFuseCallbackHandler):
    def on_round(self, event: RoundEvent) -> None:
        print(
            f"{event.number}. {event.winner} wrote {event.segment!r}, ahead by {event.margin:.3f}"
        )
        for member, draft in event.drafts.items():
            if member != event.winner:
                print(f"   {member} proposed {draft['text']!r}")

    def on_weights(self, event: WeightsEvent) -> None:
        print(
            "   weights:", ", ".join(f"{name} {weight:.2f}" for name, weight in event.after.items())
        )

    def on_exit(self, event: ExitEvent) -> None:
        print(f"   {event.member} left: {event.reason}")


llm = SpecFuseChatModel(
    members=[
        ScriptedMember(
            "The sky is blue because air scatters blue light much more than red light.", name="ann"
        ),
        ScriptedMember(
            "The sky looks blue because air bends blue light far more than red light.", name="bob"
        ),
        ScriptedMember(
            "I like long trains, and all bends they take far more than any plane, by far.",
            name="cyd",
        ),
    ],
    method=Method(segment_tokens=4),
)
answer = llm.invoke("Why is the sky blue?", {"callbacks": [Reporter()]})
print(answer.text)
print(answer.response_metadata["specfuse"])
