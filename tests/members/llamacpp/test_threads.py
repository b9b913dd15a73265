"""The number of threads is measured while writing: the fastest stays, and trying others costs
little.

A function from threads to seconds replaces the machine, so the speed of the real one is irrelevant.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.members.llamacpp.threads import SIZES, Threads, steps

Machine = Callable[[int], float]
Seconds = dict[int, float]


def written(threads: Threads, machine: Machine, passes: int, size: int = 1) -> tuple[float, int]:
    """Return the seconds that this many passes take, and how many of them used the best number."""
    best = min(range(1, threads.most + 1), key=machine)
    spent, right = 0.0, 0
    for _ in range(passes):
        number = threads.number(size)
        seconds = machine(number)
        threads.took(size, seconds)
        spent += seconds
        right += number == best
    return spent, right


def idle(number: int) -> float:
    """As measured: two threads are a third faster than one."""
    return 1 / number**0.45


def busy(number: int) -> float:
    """One busy process beside two threads on two cores."""
    return 1.0 if number == 1 else 1.9


@pytest.mark.parametrize("machine", [idle, busy])
def test_trying_numbers_of_threads_costs_a_few_percent(machine: Machine) -> None:
    best = 2000 * min(machine(1), machine(2))
    threads = Threads(2)
    written(threads, machine, 50)
    spent, right = written(threads, machine, 2000)
    assert spent < 1.06 * best and right > 0.93 * 2000


def test_on_an_idle_machine_trying_costs_little_from_the_first_pass_on() -> None:
    spent, _ = written(Threads(2), idle, 128)
    assert spent < 1.03 * 128 * idle(2)


def test_on_a_busy_machine_the_first_hundred_passes_are_nearly_the_fastest() -> None:
    spent, _ = written(Threads(2), busy, 100)
    assert spent < 1.25 * 100 * busy(1)


@given(st.lists(st.tuples(st.sampled_from([idle, busy]), st.integers(80, 600)), max_size=6))
def test_the_number_adapts_to_a_machine_that_becomes_busy_and_idle_again(
    life: list[tuple[Machine, int]],
) -> None:
    threads = Threads(2)
    for machine, passes in life:
        written(threads, machine, passes)
        _, right = written(threads, machine, 100)
        assert right > 70


@given(seed=st.integers(0, 10_000), most=st.integers(2, 16), other=st.integers(0, 12))
def test_with_noise_and_any_number_of_cores_the_number_stays_near_the_best(
    seed: int, most: int, other: int
) -> None:
    """Each thread that shares its core with other work halves the speed of all."""
    chance = random.Random(seed)

    def machine(number: int) -> float:
        crowded = max(0, number + other - most)
        return (1 / number + 0.02) * (1.0 + (0.9 if crowded else 0.0))

    def noisy(number: int) -> float:
        return machine(number) * chance.uniform(0.97, 1.03) * (5 if chance.random() < 0.03 else 1)

    threads = Threads(most)
    written(threads, noisy, 1500)
    numbers = []
    for _ in range(300):
        numbers.append(threads.number(1))
        threads.took(1, noisy(numbers[-1]))
    usual = max(set(numbers), key=numbers.count)
    assert machine(usual) < 1.4 * min(machine(number) for number in steps(most))


def test_long_passes_use_all_threads() -> None:
    assert {Threads(1).number(1) for _ in range(50)} == {1}
    threads = Threads(2)
    written(threads, busy, 100)
    assert threads.number(1) == 1 and threads.number(SIZES + 1) == 2
