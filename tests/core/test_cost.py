"""A round late in a long answer takes as many asks and steps as an early one."""

import random
import sys

from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.rounds import rounds
from langchain_specfuse.core.values import Ask, Draft, DraftJob, Effort, Panelist, Scored

from .play import QUERY


def reply_to(job, rng):
    if isinstance(job, DraftJob):
        return Draft(
            "".join(rng.choices([f" w{k}" for k in range(400)], k=10)),
            False,
            tuple(range(10)),
            (-0.5,) * 10,
        )
    return Scored(tuple(tuple(rng.uniform(-3, 0) for _ in range(10)) for _ in job.candidates))


def steps(function, *arguments):
    """Return the result and the number of function calls."""
    count = 0

    def counting(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        return function(*arguments), count
    finally:
        sys.setprofile(before)


def test_a_round_takes_as_many_asks_and_steps_at_the_end_of_a_long_answer():
    rng, number, members = random.Random(0), 200, [Panelist(f"m{i}") for i in range(4)]
    loop = rounds(
        QUERY, Settings(max_tokens=10 * number, method=Method(exit="never")), Panel.of(members)
    )
    asks, costs, replies = [0], [0], None
    while len(costs) < number:
        item, count = steps(loop.send, replies)
        costs[-1] += count
        replies = None
        if isinstance(item, Ask):
            asks[-1] += 1
            replies = {name: reply_to(job, rng) for name, job in item.jobs.items()}
        else:
            asks.append(0)
            costs.append(0)
    assert set(asks[:-1]) == {2}  # drafts, scores
    assert max(costs[-50:-1]) < 1.1 * max(costs[1:50])


def test_a_chunk_of_a_lead_takes_few_steps_at_the_end_of_a_long_answer_too():
    number = 1000
    panel = Panel.of([Panelist("lead")], lead="lead", reserve=("reserve",))
    loop = rounds(QUERY, Settings(max_tokens=2 * number), panel)
    costs, replies = [0], None
    while len(costs) < number:
        item, count = steps(loop.send, replies)
        costs[-1] += count
        # a text that does not repeat itself
        chunk = Draft(f" {len(costs):04}", False, (1,), (-0.5,), Effort(read=1), (5,))
        replies = {"lead": chunk} if isinstance(item, Ask) else None
        if replies is None:
            costs.append(0)
    # the least of many, because the garbage collector may run in between
    assert min(costs[-100:-1]) == min(costs[1:100]) < 140
