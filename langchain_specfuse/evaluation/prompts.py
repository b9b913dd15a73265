"""The doctor's own prompts: short questions of many kinds whose answers can be checked by rule. Plain data."""

from __future__ import annotations

from ..core.values import Turn
from .builtin import by_checker
from .tasks import Question, Task

TOKENS = 48
"""Budget of an answer: what does not end by then was not asked for."""

ASKED: tuple[tuple[str, str, object], ...] = (
    # Small sums
    ("What is 7 + 8? Answer with the number only.", "number", "15"),
    ("A box holds 6 eggs. How many eggs are in 4 boxes? Answer with the number only.", "number", "24"),
    ("What is 50 minus 18? Answer with the number only.", "number", "32"),
    ("I had 10 apples and gave away 3, then got 5 more. How many apples do I have now?", "number", "12"),
    ("How many minutes are in two hours?", "number", "120"),
    # Knowledge
    ("What is the capital of France?", "contains", "Paris"),
    ("What is the capital of Japan?", "contains", "Tokyo"),
    ("Which planet is known as the Red Planet?", "contains", "Mars"),
    ("Who wrote the play Romeo and Juliet?", "contains", "Shakespeare"),
    ("What do bees make that people eat?", "contains", "honey"),
    ("What is the chemical formula of water?", "regex", "H(2|₂)O"),
    ("Which animal is the largest on Earth?", "contains", "blue whale"),
    # Copying and picking from a text
    ("Repeat this word exactly and say nothing else: marzipan", "regex", r"(?i)^\W*marzipan\W*$"),
    ("Text: The meeting was moved from Monday to Thursday. Question: On which day is the meeting now?", "contains",
     "Thursday"),
    ("Text: Lena has a red bike, Omar has a green one. Question: What colour is Omar's bike?", "contains", "green"),
    ("Which word comes first in the alphabet: river, apple, stone?", "contains", "apple"),
    # Words
    ("What is the opposite of 'hot'? One word.", "contains", "cold"),
    ("What is the plural of 'child'? One word.", "contains", "children"),
    ("Translate 'good morning' into Spanish.", "contains", "buenos días"),
    ("Translate 'thank you' into French.", "contains", "merci"),
    ("Is this review positive or negative? 'I loved every minute of it.' One word.", "contains", "positive"),
    # Choices and order
    ("Which is heavier? A) a feather B) a brick. Answer with the letter only.", "choice", "B"),
    ("Which of these is a fruit? A) carrot B) potato C) banana. Answer with the letter only.", "choice", "C"),
    ("Anna is taller than Ben. Ben is taller than Carl. Who is the shortest?", "regex", r"(?i)\bcarl\b(?! is taller)"),
    # Form
    ("Write the numbers from 1 to 5, separated by commas.", "regex", r"1,\s*2,\s*3,\s*4,\s*5(?!\s*,\s*\d)"),
    ("Name three colours as a numbered list.", "regex", r"(?ms)^\s*1[.)].*^\s*2[.)].*^\s*3[.)]"),
    ("Write the Python expression that gives the length of the list x. Only the expression.", "contains", "len(x)"),
    ("Answer with a JSON object that has one key, \"ok\", with the value true. Nothing else.", "regex",
     r'\{\s*"ok"\s*:\s*true\s*\}'),
)  # fmt: skip


def prompts() -> Task:
    """The doctor's own questions as a task."""
    questions = tuple(
        Question(f"{at:02d}", (Turn("user", text),), reference, checker)
        for at, (text, checker, reference) in enumerate(ASKED, 1)
    )
    return Task("doctor", questions, by_checker, "doctor 1", max_tokens=TOKENS)
