"""Many questions from threads and event loops at once, a third broken off, some to a member that fails.

Every answer that is not broken off is the one that its question gets alone, and nothing is left of any.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import threading
import time
from collections import Counter

import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from tests.members import tiny

QUESTIONS, CALLERS, BROKEN_OFF = 72, 6, 0.3
PATIENCE_S = 120.0
WORDS = ["why", "does", "the", "sea", "sing", "when", "nobody", "hears", "it", "and", "who", "counts", "its", "waves"]


class Failing(ScriptedMember):
    """Raises in every draft."""

    def draft(self, jobs):
        raise RuntimeError("on purpose")


def models():
    members = [tiny.member("llama", 1), tiny.member("gemma3", 2), tiny.member("gpt2", 1)]
    failing = Failing("x", name="failing", device="failing")
    return [SpecFuseChatModel(members=some, segment_tokens=4) for some in (members, members[:2], [*members, failing])]


def questions(llms, rng):
    """(model, text, options): short and long questions, greedy and sampled."""
    for k in range(24):
        text = " ".join(rng.choices(WORDS, k=rng.randint(1, 120 if k % 5 == 0 else 20)))
        options = {"max_tokens": rng.choice((4, 8, 12))}
        if k % 3 == 0:
            options |= {"temperature": 0.8, "seed": k}
        yield llms[k % len(llms)], text, options


class Crowd:
    """Callers of every kind, each with its share of the questions."""

    def __init__(self, items, alone, seed):
        self.items, self.alone, self.rng = items, alone, random.Random(seed)
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self):
        draws = [(self.rng.randrange(len(self.items)), self.rng.random()) for _ in range(QUESTIONS)]
        threads = [threading.Thread(target=self.ask, args=[draws[k::CALLERS]]) for k in range(CALLERS // 2)]
        threads += [
            threading.Thread(target=asyncio.run, args=[self.ask_all(draws[k::CALLERS])])
            for k in range(CALLERS // 2, CALLERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)

    def check(self, number, answer, way):
        self.ended[way] += 1
        if answer != self.alone[number]:
            self.wrong.append(f"{way} {number}: {answer!r}, alone {self.alone[number]!r}")

    def ask(self, draws):
        for number, chance in draws:
            llm, text, options = self.items[number]
            with self.recorded(number):
                if chance < BROKEN_OFF:
                    stream = llm.stream(text, **options)
                    next(stream)
                    if chance < BROKEN_OFF / 2:
                        stream.close()  # else it is forgotten, and closed by the garbage collector
                    self.ended["broken off"] += 1
                elif chance < 0.6:
                    self.check(number, llm.invoke(text, **options).text, "invoke")
                else:
                    self.check(number, "".join(chunk.text for chunk in llm.stream(text, **options)), "stream")

    async def ask_all(self, draws):
        await asyncio.gather(*(self.aask(number, chance) for number, chance in draws))

    async def aask(self, number, chance):
        llm, text, options = self.items[number]
        with self.recorded(number):
            if chance < BROKEN_OFF:
                task = asyncio.create_task(llm.ainvoke(text, **options))
                await asyncio.sleep(chance)
                task.cancel()
                await asyncio.wait([task])
                self.ended["broken off"] += 1
            elif chance < 0.5:
                self.check(number, (await llm.ainvoke(text, **options)).text, "ainvoke")
            elif chance < 0.8:
                chunks = [chunk.text async for chunk in llm.astream(text, **options)]
                self.check(number, "".join(chunks), "astream")
            else:
                for message in await llm.abatch([text, text], **options):
                    self.check(number, message.text, "abatch")

    @contextlib.contextmanager
    def recorded(self, number):
        try:
            yield
        except Exception as error:
            self.wrong.append(f"{number}: {error!r}")


def left():
    """Threads, open files and objects, once idle workers have ended their threads."""
    end = time.monotonic() + PATIENCE_S
    while any(thread.name.startswith("specfuse") for thread in threading.enumerate()) and time.monotonic() < end:
        time.sleep(0.01)
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd")), len(gc.get_objects())


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc")
def test_answers_of_a_crowd_are_those_alone_and_nothing_is_left():
    items = list(questions(models(), random.Random(0)))
    alone = [llm.invoke(text, **options).text for llm, text, options in items]
    states, ended = [], Counter()
    for seed in range(2):
        crowd = Crowd(items, alone, seed)
        crowd.run()
        assert crowd.wrong == []
        ended += crowd.ended
        states.append(left())
    assert set(ended) == {"invoke", "stream", "ainvoke", "astream", "abatch", "broken off"}
    (threads, files, objects), last = states
    assert last[:2] == (threads, files)
    assert last[2] == pytest.approx(objects, rel=0.01)
