"""The letter that an answer to a multiple-choice question chooses, as people write it."""

from __future__ import annotations

import pytest

from langchain_specfuse import Method, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.letters import chosen_letter

WITHOUT_CHOICES = [
    # alone
    ("B", "B"),
    ("b", "B"),
    ("a", "A"),
    ("(c)", "C"),
    ("(c).", "C"),
    ("b.", "B"),
    ("**B**", "B"),
    ("**b)**", "B"),
    ("`D`", "D"),
    ('"A"', "A"),
    ("[C]", "C"),
    (" B\n", "B"),
    (" B ", "B"),
    ("It is B ", "B"),
    ("Option B", "B"),
    ("Letter: C", "C"),
    ("I", "I"),
    # at the beginning
    ("A) carrot", "A"),
    ("a) carrot", "A"),
    ("B. It is orange.", "B"),
    ("B: it is orange", "B"),
    ("B, because it is orange", "B"),
    ("B because it is orange", "B"),
    ("B - it is orange", "B"),
    ("(B) It is orange.", "B"),
    ("(b) because", "B"),
    ("B is correct.", "B"),
    ("C is the right answer, I think", "C"),
    ("B\n\nA carrot is orange.", "B"),
    # stated
    ("The answer is B.", "B"),
    ("The answer is A", "A"),
    ("The answer is b.", "B"),
    ("The answer is (c) because of that", "C"),
    ("The answer is: **D**", "D"),
    ("Answer: B", "B"),
    ("**Answer:** (C)", "C"),
    ("Answer: b", "B"),
    ("Answer:\n\nB", "B"),
    ("ANSWER: B", "B"),
    ("My answer would be D, since it fits.", "D"),
    ("The correct answer to the question is clearly option C.", "C"),
    ("The correct choice is A because it is red.", "A"),
    ("The best option would have to be (D)", "D"),
    ("So the answer must be letter B!", "B"),
    ("I'd answer B", "B"),
    ("First I thought the answer is A, but the answer is B", "B"),
    ("The answer is A, not B.", "A"),
    ("The answer is B. A is wrong because it is blue.", "B"),
    ("The answer is not A. It is C.", "C"),
    ("#### C", "C"),
    ("A is red, so $\\boxed{D}$", "D"),
    ("$\\boxed{\\text{(B)}}$", "B"),
    # declared
    ("I think it is B", "B"),
    ("I think it's (b)", "B"),
    ("I believe B", "B"),
    ("I choose C.", "C"),
    ("I would pick option D", "D"),
    ("I'd go with C", "C"),
    ("I am going with A.", "A"),
    ("It must be A.", "A"),
    ("a bit surprising: it is C", "C"),
    ("A bit surprising, but it is C", "C"),
    ("A carrot is orange, so B.", "B"),
    ("Therefore, B", "B"),
    ("Definitely B!", "B"),
    ("Yes, B.", "B"),
    ("It is not A but B.", "B"),
    ("A is wrong. B is right.", "B"),
    ("Option B is right, option A is wrong", "B"),
    ("I considered them all. Finally: D", "D"),
    ("Is it A? No, it is B.", "B"),
    ("Let me think about it.\nC", "C"),
    ("A) 12\nB) 15\nTwelve and three make fifteen, so it is B", "B"),
    ("The orange one (C) it is", "C"),
    ("B it is!", "B"),
    ("C, I guess", "C"),
    ("B is my choice", "B"),
    ("A: no. B: yes, so B.", "B"),
    ("Between A and B, I prefer A", "A"),
    ("The wrong answer is A, the right one is D", "D"),
    ("[[B]]", "B"),
    ("B</s>", "B"),
    # other languages
    ("Die Antwort ist B.", "B"),
    ("La respuesta es C", "C"),
    ("La réponse est (D)", "D"),
    ("答案是B。", "B"),
    ("正解はCです", "C"),
    # nothing
    ("", ""),
    ("a carrot", ""),
    ("A carrot", ""),
    ("A banana, I think", ""),
    ("It is a carrot", ""),
    ("The answer is a carrot", ""),
    ("The answer is a", ""),
    ("the answer is A Tale of Two Cities", ""),
    ("I think so", ""),
    ("I'd say so", ""),
    ("I, for one, do not know", ""),
    ("I am not sure", ""),
    ("I don't know", ""),
    ("So I would say it is hard", ""),
    ("Vitamin C is healthy", ""),
    ("That is a plan B situation", ""),
    ("It costs a dollar a day", ""),
    ("C++", ""),
    ("e.g. the first", ""),
    ("A/B testing", ""),
    ("A-levels are exams", ""),
    ("It is Z", ""),
    # several
    ("A or B", ""),
    ("It is A or B", ""),
    ("Either A or B", ""),
    ("The answers are A and C", ""),
    ("A, B and C", ""),
    ("Neither A nor B", ""),
    ("I cannot choose between A and B", ""),
    ("The answer is not A.", ""),
    ("The wrong answer is A", ""),
    ("It isn't A", ""),
    ("Not A", ""),
    ("B?", ""),
    ("(A) and (B) both look right", ""),
]


@pytest.mark.parametrize(("answer", "letter"), WITHOUT_CHOICES)
def test_the_chosen_letter_is_found_without_knowing_the_choices(answer: str, letter: str) -> None:
    assert chosen_letter(answer) == letter


CHOICES = ["carrot", "banana", "red apple", "apple"]


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("A carrot", "A"),
        ("A banana", "B"),
        ("a banana, I think", "B"),
        ("I think it is a CARROT.", "A"),
        ("A red apple", "C"),
        ("An apple, not a red apple", ""),
        ("a carrot or a banana", ""),
        ("B: carrot", "B"),
        ("The answer is D", "D"),
        ("The answer is a banana (B)", "B"),
        ("B banana", "B"),
        ("It is E", ""),
        ("Something else", ""),
        ("pineapple", ""),
    ],
)
def test_the_text_of_a_choice_counts_if_the_choices_are_known(answer: str, letter: str) -> None:
    assert chosen_letter(answer, CHOICES) == letter


def test_whole_answers_that_choose_the_same_letter_agree() -> None:
    texts = ("A carrot is what I would take: (C)", "I think it is B", "a bit hard, but it is B.")
    members = [ScriptedMember(text, name=name) for text, name in zip(texts, "abc", strict=True)]
    llm = SpecFuseChatModel(
        members=members, method=Method(segment="answer", result="choice"), lead=None
    )
    assert llm.invoke("Which?").text == texts[1]
