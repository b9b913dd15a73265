"""lm-evaluation-harness drives an ensemble: a local task that generates, one that chooses, and what is not possible."""

from __future__ import annotations

import json
import math

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from langchain_specfuse.core.method import Settings
from langchain_specfuse.errors import UsageError
from langchain_specfuse.evaluation.harness import SpecFuseLM
from langchain_specfuse.evaluation.running import on_worker
from langchain_specfuse.members.scripted import ScriptedMember

pytestmark = pytest.mark.filterwarnings("ignore")


def members():
    return [ScriptedMember("The answer is 4.", name="ann"), ScriptedMember("The answer is 4.", name="bob")]


def requests(*arguments):
    return [Instance("generate_until", {}, one, at) for at, one in enumerate(arguments)]


def test_generates_with_the_harness_s_stops_and_budget():
    arguments = [("2 + 2?", {"until": ["is"]}), ("2 + 2?", {"max_gen_toks": 2}), ("2 + 2?", {})]
    assert SpecFuseLM(members()).generate_until(requests(*arguments)) == [
        "The answer ",
        "The answer",
        "The answer is 4.",
    ]


def test_a_continuation_s_probability_is_the_members_mixture():
    sure, unsure = ScriptedMember("Paris", name="ann"), ScriptedMember("Rome", name="bob")
    silent = ScriptedMember("Rome", name="eve", draft_only=True)
    model = SpecFuseLM([sure, unsure, silent], prior={"ann": 3.0, "bob": 1.0})
    (paris, is_greedy), (rome, _) = model.loglikelihood(requests(("Capital?", " Paris"), ("Capital?", " Rome")))
    assert paris == pytest.approx(math.log(0.75 * math.exp(-0.1) + 0.25 * math.exp(-3.0)))
    assert rome == pytest.approx(math.log(0.25 * math.exp(-0.1) + 0.75 * math.exp(-3.0)))
    assert is_greedy and not model.loglikelihood(requests(("Capital?", " Lima")))[0][1]
    for member in (sure, unsure):  # it forgets on its worker, after the answer
        on_worker(member, lambda: None).result()
        assert member.open_queries == {}


def test_a_text_without_a_question_cannot_be_scored():
    with pytest.raises(UsageError, match=r"loglikelihood_rolling .* not possible"):
        SpecFuseLM(members()).loglikelihood_rolling(requests(("some text",)))


def task(folder, name: str, **more):
    """A task of sums, from a local file."""
    own = {"data_files": {"test": str(folder / "data.jsonl")}, "cache_dir": str(folder / "cache")}
    more |= {"task": name, "dataset_path": "json", "dataset_kwargs": own, "test_split": "test"}
    (folder / f"{name}.yaml").write_text(json.dumps(more | {"doc_to_text": "{{question}}"}))  # JSON is YAML


@pytest.mark.slow
@pytest.mark.parametrize("templated", [False, True])
def test_the_harness_evaluates_tasks_that_generate_and_that_choose(tmp_path, templated):
    lines = [json.dumps({"question": f"{a} + {a}?", "answer": str(2 * a)}) for a in (1, 2, 3, 4)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    task(tmp_path, "sums", output_type="generate_until", doc_to_target="{{answer}}",
         generation_kwargs={"until": ["!"], "max_gen_toks": 16}, metric_list=[{"metric": "exact_match"}])  # fmt: skip
    task(tmp_path, "choice", output_type="multiple_choice", doc_to_choice=["2", "4", "6", "8"],
         doc_to_target="{{(answer | int) // 2 - 1}}", metric_list=[{"metric": "acc"}])  # fmt: skip
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)

    def doubled(query):
        return str(2 * int(query.turns[-1].text.split()[0]))

    for script, share in ((doubled, 1.0), ("4", 0.25)):
        model = SpecFuseLM([ScriptedMember(script, name="ann")], settings=Settings(max_tokens=32))
        found = lm_eval.simple_evaluate(
            model, tasks=["sums", "choice"], task_manager=manager, apply_chat_template=templated, bootstrap_iters=0
        )["results"]
        assert found["sums"]["exact_match,none"] == found["choice"]["acc,none"] == share
