"""lm-evaluation-harness drives an ensemble: a local task that generates, one that chooses, and what is not possible."""

from __future__ import annotations

import json
import math

import pytest

from langchain_specfuse.core.values import Settings
from langchain_specfuse.errors import UsageError
from langchain_specfuse.members.scripted import ScriptedMember

lm_eval = pytest.importorskip("lm_eval")

from langchain_specfuse.evaluation.harness import SpecFuseLM  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def members():
    return [ScriptedMember("The answer is 4.", name="ann"), ScriptedMember("The answer is 4.", name="bob")]


def asked(*arguments):
    from lm_eval.api.instance import Instance

    return [Instance("generate_until", {}, one, at) for at, one in enumerate(arguments)]


def test_generates_with_the_harness_s_stops_and_budget():
    model = SpecFuseLM(members())
    first, second, third = model.generate_until(
        asked(("2 + 2?", {"until": ["is"]}), ("2 + 2?", {"max_gen_toks": 2}), ("2 + 2?", {}))
    )
    assert (first, second, third) == ("The answer ", "The answer", "The answer is 4.")


def test_a_continuation_s_probability_is_the_members_mixture():
    sure, unsure = ScriptedMember("Paris", name="ann"), ScriptedMember("Rome", name="bob")
    model = SpecFuseLM([sure, unsure], prior={"ann": 3.0, "bob": 1.0})
    (paris, is_greedy), (rome, _) = model.loglikelihood(asked(("Capital?", " Paris"), ("Capital?", " Rome")))
    assert paris == pytest.approx(math.log(0.75 * math.exp(-0.1) + 0.25 * math.exp(-3.0)))
    assert rome == pytest.approx(math.log(0.25 * math.exp(-0.1) + 0.75 * math.exp(-3.0)))
    assert is_greedy and not model.loglikelihood(asked(("Capital?", " Lima")))[0][1]


def test_a_member_without_a_vote_is_left_out_of_probabilities():
    model = SpecFuseLM([ScriptedMember("Paris", name="ann"), ScriptedMember("Rome", name="bob", draft_only=True)])
    assert model.loglikelihood(asked(("Capital?", " Paris")))[0][0] == pytest.approx(-0.1)


def test_a_text_without_a_question_cannot_be_scored():
    with pytest.raises(UsageError, match=r"loglikelihood_rolling .* not possible"):
        SpecFuseLM(members()).loglikelihood_rolling(asked(("some text",)))


def test_wrong_arguments_are_told():
    with pytest.raises(UsageError, match="objects here, got a text"):
        SpecFuseLM("a/b")
    with pytest.raises(UsageError, match="no option 'temprature'"):
        SpecFuseLM(members(), temprature=1)


@pytest.fixture
def tasks(tmp_path):
    """Two tasks of our own from local files, one that generates and one that chooses."""
    (tmp_path / "data.jsonl").write_text(
        "\n".join(json.dumps({"question": f"{a} + {a}?", "answer": str(2 * a)}) for a in (1, 2, 3, 4))
    )
    shared = f"""
dataset_path: json
dataset_kwargs:
  data_files:
    test: {tmp_path}/data.jsonl
  cache_dir: {tmp_path}/cache
test_split: test
doc_to_text: "{{{{question}}}}"
"""
    (tmp_path / "sums.yaml").write_text(
        "task: specfuse_sums\noutput_type: generate_until" + shared + 'doc_to_target: "{{answer}}"\n'
        'generation_kwargs: {until: ["!"], max_gen_toks: 16}\n'
        'filter_list:\n  - name: number\n    filter:\n      - function: regex\n        regex_pattern: "(\\\\d+)"\n'
        "      - function: take_first\n"
        "metric_list:\n  - metric: exact_match\n    aggregation: mean\n    higher_is_better: true\n"
    )
    (tmp_path / "choice.yaml").write_text(
        "task: specfuse_choice\noutput_type: multiple_choice" + shared +
        'doc_to_choice: ["2", "4", "6", "8"]\ndoc_to_target: "{{(answer | int) // 2 - 1}}"\n'
        "metric_list:\n  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n"
    )  # fmt: skip
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=str(tmp_path), include_defaults=False)


def doubled(query):
    return str(2 * int(query.turns[-1].text.split()[0]))


@pytest.mark.slow
@pytest.mark.parametrize("templated", [False, True])
def test_the_harness_evaluates_a_local_task(tasks, templated):
    """ann is right about all, bob says 4: together right where they agree, and where ann is believed."""
    model = SpecFuseLM([ScriptedMember(doubled, name="ann", confidence=3.0)], settings=Settings(max_tokens=32))
    told = lm_eval.simple_evaluate(
        model,
        tasks=["specfuse_sums", "specfuse_choice"],
        task_manager=tasks,
        apply_chat_template=templated,
        bootstrap_iters=0,
    )["results"]
    assert told["specfuse_sums"]["exact_match,number"] == 1.0
    assert told["specfuse_choice"]["acc,none"] == 1.0
    four = SpecFuseLM([ScriptedMember("4", name="bob")])
    told = lm_eval.simple_evaluate(
        four, tasks=["specfuse_sums", "specfuse_choice"], task_manager=tasks, bootstrap_iters=0
    )["results"]
    assert told["specfuse_sums"]["exact_match,number"] == told["specfuse_choice"]["acc,none"] == 0.25
