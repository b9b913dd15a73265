"""The bank: the same answers with and without it, and other rules from the same replies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bank import Bank, banked, content_of

from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.values import Attachment, DraftJob, Query, Sampling, Segment, Turn
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.errors import EnsembleError, UsageError
from langchain_specfuse.members.scripted import ScriptedMember
from tests.members import tiny

QUERY = Query("q", (Turn("user", "Why is the sky blue?"),))
SETTINGS = Settings(segment_tokens=3, max_tokens=30)


def scripted():
    texts = {
        "ann": "The sky is blue because of the air.",
        "bob": "The sky is grey and full of clouds.",
    }
    return {name: ScriptedMember(text, name=name) for name, text in texts.items()}


def with_bank(members, path, **options):
    bank = Bank(path, **options)
    return bank, Ensemble(list(banked(members, bank).values()))


def facts(rounds):
    return [
        (
            r.text,
            r.winner,
            r.totals,
            r.weights,
            r.scores,
            {n: d.logprobs for n, d in r.drafts.items()},
        )
        for r in rounds
    ]


def test_a_bank_changes_no_answer_and_is_asked_instead_of_the_member(tmp_path):
    plain = facts(Ensemble(list(scripted().values())).rounds(QUERY, SETTINGS))
    bank, ensemble = with_bank(scripted(), tmp_path / "bank")
    assert facts(ensemble.rounds(QUERY, SETTINGS)) == plain
    assert bank.asked > 0 and bank.replayed == 0
    again, ensemble = with_bank(scripted(), tmp_path / "bank")
    assert facts(ensemble.rounds(replace(QUERY, id="another"), SETTINGS)) == plain
    assert again.asked == 0 and again.replayed == bank.asked


def test_without_the_members_another_rule_on_the_same_replies_works_and_a_new_one_says_what_is_missing(
    tmp_path,
):
    _, ensemble = with_bank(scripted(), tmp_path / "bank")
    list(ensemble.rounds(QUERY, SETTINGS))
    _, offline = with_bank(scripted(), tmp_path / "bank", offline=True)
    other = SETTINGS.model_copy(update={"method": Method(learning_rate=0.0, reward="wins")})
    assert "".join(r.text for r in offline.rounds(QUERY, other)).startswith("The sky is")
    with pytest.raises(
        EnsembleError, match="the bank has no draft of ann for this job: record this rule"
    ):
        list(offline.rounds(replace(QUERY, turns=(Turn("user", "Who?"),)), SETTINGS))
    with pytest.raises(UsageError, match="there is no bank"):
        Bank(tmp_path / "nothing", offline=True)
    (tmp_path / "text").write_text("no data base at all, but long enough to be read as one" * 9)
    with pytest.raises(UsageError, match="is not a bank"):
        Bank(tmp_path / "text")


@pytest.mark.filterwarnings("ignore")
def test_replies_of_a_model_come_back_as_they_were(tmp_path):
    members = {"a": tiny.member("llama", name="a"), "b": tiny.member("gemma3", name="b")}
    plain = facts(Ensemble(list(members.values())).rounds(QUERY, SETTINGS))
    _, ensemble = with_bank(members, tmp_path / "bank")
    assert facts(ensemble.rounds(QUERY, SETTINGS)) == plain
    _, offline = with_bank(members, tmp_path / "bank", offline=True)
    assert facts(offline.rounds(QUERY, SETTINGS)) == plain


def test_others_text_is_one_text_and_own_tokens_are_kept_apart():
    def job(*answer):
        return content_of(DraftJob(QUERY, answer, 4, 999, Sampling()), "a")

    assert job(Segment("One two")) == job(Segment("One"), Segment(" two"))
    assert job(Segment("One two", tokens={"b": (1, 2)})) == job(Segment("One two"))
    assert job(Segment("One two", tokens={"a": (1, 2)})) != job(Segment("One two"))


def test_a_question_with_an_image_is_another_question():
    images = [(), (Attachment("image", '{"url": "a"}'),), (Attachment("image", '{"url": "b"}'),)]
    queries = [replace(QUERY, turns=(replace(QUERY.turns[0], attachments=one),)) for one in images]
    plain, *others = (content_of(DraftJob(query, (), 4, 999, Sampling()), "a") for query in queries)
    assert others[0] != others[1] and plain not in others
    assert "attachments" not in plain["query"]["turns"][0], "banks of earlier versions stay valid"
