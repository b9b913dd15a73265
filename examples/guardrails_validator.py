"""Use a validator of Guardrails AI as a check.

    pip install langchain-specfuse guardrails-ai
    python examples/guardrails_validator.py   # scripted members, no network

Guardrails' hub has many more validators, such as ``from guardrails.hub import ToxicLanguage`` after
``guardrails hub install hub://guardrails/toxic_language``.

Leave out ``on_fail``: the validator only judges, and other drafts repair the answer. The validator
is wrapped in a function, because its own ``invoke`` returns the text.
"""

from guardrails.validators import (
    FailResult,
    PassResult,
    ValidationResult,
    Validator,
    register_validator,
)

from langchain_specfuse import ScriptedMember, SpecFuseCallbackHandler, SpecFuseChatModel, checks
from langchain_specfuse.checks import Check


@register_validator(name="no-promises", data_type="string")
class NoPromises(Validator):
    """A validator of your own. Use those of the hub in the same way."""

    def _validate(self, value: str, metadata: dict) -> ValidationResult:
        if "guarantee" in value.lower():
            return FailResult(error_message="promises something")
        return PassResult()


def validated_by(validator: Validator) -> Check:
    """Turn a validator into a check of every sentence, which is what most validators expect."""

    def validate(text: str) -> str | None:
        result = validator.validate(text, {})
        return result.error_message if isinstance(result, FailResult) else None

    return checks.at("sentence", validate, name=validator.rail_alias)


members = [
    ScriptedMember("It works. Guaranteed for ten years.", name="ann"),
    ScriptedMember("It works. Most last for ten years.", name="bob"),
]
llm = SpecFuseChatModel(members=members, checks=[validated_by(NoPromises())])

show = SpecFuseCallbackHandler(
    on_rejected=lambda event: print(f"\n   [{event.member} {event.reason}]")
)
for chunk in llm.stream("Is it good?", {"callbacks": [show]}):
    print(chunk.text, end="", flush=True)
print()
