"""The study of the router: what it asks, what is left of a stopped run, and what its table says."""

from __future__ import annotations

import pytest
import routing
from cases import DEVELOPMENT, SEALED, Case, Grade
from models import MODELS

from langchain_specfuse import ScriptedMember

SUBJECTS = ("sea", "sky")


def cases(subject):
    """Questions about a subject, which the answer must name."""

    def made(part, folder):
        return [
            Case(
                f"{part} {subject} {number}",
                subject,
                f"{part}: tell me about the {subject}, please, in {number} words",
                (),
                lambda text: Grade(subject in text),
            )
            for number in range(40)
        ]

    return made


@pytest.fixture
def mixed(tmp_path, monkeypatch):
    """The study, where the first model knows the sea, the second the sky, and the third nothing."""
    sets = {subject: routing.Set(cases(subject), 8) for subject in SUBJECTS}
    monkeypatch.setattr(routing, "SETS", sets)
    texts = dict(zip(MODELS, ("The sea.", "The sky.", "Nothing."), strict=True))
    asked = set()

    def script(key):
        def answer(query):
            asked.add(query.turns[-1].text)
            return texts[key]

        return answer

    members = {
        model.name: ScriptedMember(script(key), name=model.name) for key, model in MODELS.items()
    }
    monkeypatch.setattr(routing, "member_of", lambda model: members[model.name])
    return lambda: routing.Mixed(tmp_path, tmp_path / "routing", at_once=8), asked


def test_the_router_asks_the_member_that_knows_the_subject(mixed):
    made, asked = mixed
    study = made()
    assert study.plan([DEVELOPMENT]).count("40 answers") == 6
    assert routing.mixed_study(study, with_sealed=False) == []
    assert study.plan([DEVELOPMENT]).count("complete") == 6
    assert study.plan([SEALED]).count("40 answers, 1 min") == 6
    asked.clear()
    first, *rows = routing.mixed_study(made(), with_sealed=True)
    assert len(asked) == 80 and all(text.startswith(SEALED) for text in asked)
    assert (first["right"], first["marks"]) == (80, 80)
    assert [row["right"] for row in rows] == [40, 40, 0]
    assert rows[0]["the router against it"]["won"] == 40
