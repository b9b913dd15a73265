"""What a round of the pure loop costs: flat over a long answer, and small against the scores that it reads."""

import random
import statistics
import time

from langchain_specfuse.core.answer import continues_loop
from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.rounds import rounds
from langchain_specfuse.core.values import Ask, Draft, DraftJob, Round, Scored, Seat, Settings

from .play import QUERY


def seconds_per_round(members=5, number=200):
    """Time spent inside the loop, round by round; members reply at once."""
    rng = random.Random(0)
    words = [f" w{k}" for k in range(400)]
    settings = Settings(max_tokens=10 * number, exit="never")
    loop = rounds(QUERY, settings, Panel.of([Seat(f"m{i}") for i in range(members)]))
    spent, costs, replies = 0.0, [], None
    while True:
        since = time.thread_time()
        item = loop.send(replies) if len(costs) < number else None
        spent += time.thread_time() - since
        replies = None
        if isinstance(item, Ask):
            replies = {name: _reply(job, rng, words) for name, job in item.jobs.items()}
        elif isinstance(item, Round):
            costs.append(spent)
            spent = 0.0
        else:
            return costs


def _reply(job, rng, words):
    if isinstance(job, DraftJob):
        return Draft("".join(rng.choices(words, k=10)), False, tuple(range(10)), (-0.5,) * 10)
    return Scored(tuple(tuple(rng.uniform(-3, 0) for _ in range(10)) for _ in job.candidates))


def test_a_round_costs_the_same_at_the_end_of_a_long_answer():
    costs = seconds_per_round(number=400)
    early, late = statistics.median(costs[10:100]), statistics.median(costs[-90:])
    print(f"the loop: {early * 1e6:.0f} us a round at first, {late * 1e6:.0f} us after 400 rounds, five members")
    assert late < 1.5 * early


def test_looking_for_a_loop_costs_the_same_in_a_long_answer():
    rng = random.Random(1)
    text = " ".join(rng.choice(["the", "sky", "is", "blue", "because", "light", "scatters"]) for _ in range(4000))

    def cost(answer):
        since = time.thread_time()
        for _ in range(300):
            continues_loop(answer, " the light is blue because the sky")
        return (time.thread_time() - since) / 300

    short, long = min(cost(text[-700:]) for _ in range(3)), min(cost(text) for _ in range(3))
    print(f"looking for a loop: {short * 1e6:.1f} us after 700 characters, {long * 1e6:.1f} us after {len(text)}")
    assert long < 3 * short


def test_looking_for_a_loop_is_quick_in_the_worst_text_too():
    def cost(answer, draft):
        since = time.thread_time()
        for _ in range(20):
            continues_loop(answer, draft)
        return (time.thread_time() - since) / 20

    plain = cost("The sky is blue because light scatters in the air, they say. " * 10, " and so it goes on")
    worst = cost("x" * 300 + "!", "ab" * 300)
    assert worst < 1000 * max(plain, 1e-6)
