"""The lead drafts alone while it is sure; the others are asked when it is not, and replace it only
with enough evidence."""

import math
from dataclasses import replace

import pytest

from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.values import Draft, DraftJob, Failure, Panelist, Scored

from .play import babbler, play, repeater, speakers

SURE, UNSURE = -0.1, -2.0


def always(value):
    return lambda round: value


def led(**options):
    return Settings(
        max_tokens=30,
        lead="b",
        method=Method(**{"sure": 0.5, "margin": 0.0} | options, segment_tokens=3),
    )


OTHERS = {"a": repeater("x", always(-0.5)), "c": repeater("z", always(-0.6))}


def drafters(played):
    return [set(round.drafts) for round in played.rounds]


def test_a_sure_lead_writes_without_a_vote():
    played = play({"b": repeater("y", always(SURE)), **OTHERS}, led())
    assert drafters(played) == [{"b"}] * 10
    assert {name for ask in played.asks for name in ask.jobs} == {"b"}
    assert [(r.winner, r.lead, dict(r.evidence), dict(r.scores)) for r in played.rounds] == [
        ("b", "b", {}, {})
    ] * 10
    assert len({tuple(r.weights.values()) for r in played.rounds}) == 1


def test_where_the_lead_is_unsure_the_others_draft_and_all_score():
    wavers = repeater("y", lambda number: UNSURE if number == 3 else SURE)
    played = play({"a": OTHERS["a"], "b": wavers, "c": OTHERS["c"]}, led())
    assert [len(drafts) for drafts in drafters(played)] == [1, 1, 3] + [1] * 7
    assert [set(ask.jobs) for ask in played.asks if ask.round == 3] == [
        {"b"},
        {"a", "c"},
        {"a", "b", "c"},
    ]
    assert set(played.rounds[2].evidence) == {"a", "c"}
    assert list(played.rounds[2].drafts) == ["a", "b", "c"]


def test_one_unlikely_token_makes_the_lead_unsure():
    sure = repeater("y", always(SURE))

    def wavers(job, number):
        draft = sure(job, number)
        once = isinstance(job, DraftJob) and number == 2
        return replace(draft, logprobs=(SURE, UNSURE, SURE)) if once else draft

    played = play({"b": wavers, **OTHERS}, led())
    assert [len(drafts) for drafts in drafters(played)][:3] == [1, 3, 1]


def test_a_rival_replaces_the_lead_only_by_more_evidence_than_the_margin():
    # All verifiers score others' drafts -2.0 a token. "a" gives its own -0.5, the lead its own
    # -2.1.
    members = {"a": repeater("x", always(-0.5)), "b": repeater("y", always(-2.1))}
    evidence = play(members, led()).rounds[0].evidence["a"]
    assert evidence == pytest.approx(((-0.5 + 2.0) + (-2.0 + 2.1)) / 2)
    assert play(members, led(margin=evidence - 0.01)).rounds[0].winner == "a"
    assert play(members, led(margin=evidence)).rounds[0].winner == "b"
    assert play(members, led(margin=evidence + 0.01)).rounds[0].winner == "b"


def test_one_verifier_that_finds_a_draft_impossible_does_not_overrule_the_others():
    """Three verifiers clearly prefer the lead's draft; the fourth finds one of its tokens
    impossible."""
    clear = {name: repeater(name, always(-3.0), -0.2) for name in "cd"}
    lead = repeater("y", always(-1.0), -4.0)
    for impossible in (-math.inf, -1e30, -500.0):
        doubter = repeater("x", always(-0.1), impossible)
        first = play({"a": doubter, "b": lead, **clear}, led(margin=0.5)).rounds[0]
        assert first.winner == "b"
        assert first.evidence["a"] < 0.5
        alone = play({"a": doubter, "b": repeater("y", always(-1.0), -1.1)}, led(margin=0.5))
        assert alone.rounds[0].winner == "a"  # its vote still counts as much as one verifier's can


def endless(answerer, word=-1.0):
    """Return the same member, but with zero probability for every end of its turn."""

    def reply(job, number):
        draft = answerer(job, number)
        if isinstance(job, DraftJob):
            return draft
        rows = [[word] * len(c.text.split()) + [-math.inf] * c.ended for c in job.candidates]
        return replace(draft, logprobs=tuple(map(tuple, rows)))

    return reply


@pytest.mark.parametrize("lead", ["b", None])
def test_a_member_that_cannot_end_turns_is_not_asked_about_ends(lead):
    ends = speakers(b="It is so.")["b"]

    def unsure(job, number):
        reply = ends(job, number)
        if isinstance(reply, Draft):
            return replace(reply, logprobs=(-1.5,) * len(reply.logprobs))
        return reply

    members = {"a": endless(repeater("x", always(-0.5))), "b": unsure}
    first = play(members, led().model_copy(update={"lead": lead})).rounds[0]
    assert first.drafts["b"].ended
    assert first.scores["a"] == {"a": pytest.approx(-0.5), "b": pytest.approx(-1.0)}


def test_a_member_that_cannot_end_turns_has_no_vote_on_a_mere_end():
    def silent(job, number):
        if isinstance(job, DraftJob):
            return Draft("", True, (), (UNSURE,))
        return Scored(tuple((UNSURE,) * len(c.text.split()) for c in job.candidates))

    members = {"a": endless(repeater("x", always(-0.5))), "b": silent}
    first = play(members, led()).rounds[0]
    assert set(first.scores) == {"b"}
    assert (first.winner, first.finish) == ("b", "stop")


def test_ties_go_to_the_lead():
    members = {"a": repeater("x", always(-2.0)), "b": repeater("y", always(-2.0))}
    first = play(members, led()).rounds[0]
    assert (dict(first.evidence), first.winner) == ({"a": 0.0}, "b")


@pytest.mark.parametrize("stop", [(), ("five",), ("e f",)])
def test_with_an_infinite_margin_the_lead_writes_alone_and_no_other_member_is_asked(stop):
    text = "One two three four five six seven eight nine ten."
    members = speakers(a="No. " + text, b=text, c="Never.")
    settings = Settings(lead="b", stop=stop, method=Method(margin=math.inf, segment_tokens=3))
    played, alone = play(members, settings), play({"b": members["b"]}, settings)
    assert played.text == alone.text
    assert [ask.jobs for ask in played.asks] == [ask.jobs for ask in alone.asks]


def test_a_lead_that_fails_leaves_the_others_to_vote():
    works = repeater("y", always(SURE))
    breaks = lambda job, number: (
        Failure("error", "fell over") if number == 2 else works(job, number)
    )
    played = play({"b": breaks, **OTHERS}, led(margin=0.0))
    assert (played.left, played.error) == (["b"], None)
    assert drafters(played) == [{"b"}] + [{"a", "c"}] * 9
    assert [round.lead for round in played.rounds] == ["b"] + [""] * 9


def test_a_lead_whose_context_is_full_leaves_the_answer_to_those_with_room():
    works = repeater("y", always(SURE))
    full = lambda job, number: Failure("overflow", "full") if number >= 2 else works(job, number)
    played = play({"a": OTHERS["a"], "b": full}, led())
    assert (played.left, played.rounds[-1].finish, len(played.rounds)) == (["b"], "length", 10)


# --- without max_tokens ---------------------------------------------------------------------------

NUMBERS = " ".join(map(str, range(1, 1201)))


def writes(text, **options):
    """Play a lead that writes this text, while two others are in reserve."""
    members = speakers(lead=text, b="no", c="no")
    settings = Settings(lead="lead", method=Method(segment_tokens=100, **options))
    played = play(members, settings)
    return played.text, played.rounds[-1]


def test_without_max_tokens_a_lead_writes_until_it_ends():
    text, last = writes(NUMBERS)
    assert (text, last.finish, last.stalled) == (NUMBERS, "stop", False)


def test_without_max_tokens_members_that_vote_write_512_tokens():
    for settings in (Settings(), Settings(lead="a", method=Method(margin=0.5))):
        played = play(speakers(a=NUMBERS, b=NUMBERS), settings)
        assert (len(played.text.split()), played.rounds[-1].finish) == (512, "length")


@pytest.mark.parametrize("max_tokens", [None, 2000])
def test_a_lead_that_only_repeats_itself_ends(max_tokens):
    loop = NUMBERS[:500] + " and it is so because" * 200
    text, last = writes(loop)
    assert loop.startswith(text) and 2500 <= len(text) < 3500
    assert (last.finish, last.stalled, last.looped) == ("length", True, ("lead",))


def test_without_the_guard_a_lead_that_repeats_itself_writes_512_tokens():
    text, last = writes(" so" * 1000, loop_guard=False)
    assert (len(text.split()), last.finish, last.looped) == (512, "length", ())


def test_a_lead_never_leaves_because_it_loses():
    hopeless, others = (
        repeater("y", always(-9.0)),
        {name: repeater(name, always(-0.1), -0.2) for name in "acd"},
    )
    played = play({"b": hopeless, **others}, led(min_members=1))
    assert {round.winner for round in played.rounds} <= set("acd") and "b" not in played.left
    equals = Settings(max_tokens=30, lead=None, method=Method(min_members=1, segment_tokens=3))
    assert "b" in play({"b": hopeless, **others}, equals).left


def test_a_lead_that_repeats_itself_is_put_to_the_vote():
    members = speakers(
        a="Something else entirely, at last. " * 3, b="so it goes and so it goes and " * 20
    )
    played = play(
        members,
        Settings(max_tokens=80, lead="b", method=Method(sure=0.0, margin=0.5, segment_tokens=8)),
    )
    assert any(round.looped == ("b",) and round.winner == "a" for round in played.rounds)


def test_a_lead_without_log_probabilities_is_always_put_to_the_vote():
    text = speakers(b="One two three four.")["b"]
    bare = lambda job, number: replace(text(job, number), logprobs=None)
    panel = [Panelist("a"), Panelist("b", scores=False)]
    played = play({**speakers(a="Two three four five."), "b": bare}, led(sure=0.0), panel)
    assert all(len(drafts) == 2 for drafts in drafters(played))


def test_nobody_leads_where_the_method_has_no_margin():
    settings = Settings(max_tokens=40, lead="b", method=Method.named("specem", segment_tokens=3))
    assert {round.lead for round in play({"b": babbler(1), "a": babbler(2)}, settings).rounds} == {
        ""
    }
