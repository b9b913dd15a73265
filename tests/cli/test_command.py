"""The command from outside: what it prints to which stream, and its exit codes. Members are
scripted, so it is quick."""

from __future__ import annotations

import importlib
import io
import json
import re
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from langchain_openai import ChatOpenAI

from langchain_specfuse import ChatModelMember, MemberError, ScriptedMember, __version__, unload
from langchain_specfuse.chat.calibration import Calibration
from langchain_specfuse.chat.references import names_of
from langchain_specfuse.cli.choices import (
    OF_METHOD,
    add_members,
    members_of,
    method_of,
    new_parser,
    options_of,
)
from langchain_specfuse.cli.main import FAILED, FINE, INTERRUPTED, MISUSED, UNREAD, main
from langchain_specfuse.core.options import METHODS, Method
from langchain_specfuse.core.values import DraftJob
from langchain_specfuse.errors import UsageError
from tests.demo_members import replace_demo
from tests.members.failing_server import FailingServer

TEXT = "The sky is blue because the air scatters short waves of light more strongly than long ones."
OTHER = (
    "The sea is blue since water absorbs red light, the sky is another matter altogether, friends."
)


def members() -> list[ScriptedMember]:
    return [
        ScriptedMember(TEXT, name="alpha"),
        ScriptedMember(TEXT, name="beta"),
        ScriptedMember(OTHER, name="gamma"),
    ]


@pytest.fixture
def ask(capsys, monkeypatch):
    """Run the command once; return (exit code, standard output, standard error)."""

    def asked(*argv: str, by=None):
        replace_demo(by or members(), monkeypatch.setattr)
        return (main(argv), *capsys.readouterr())

    return asked


def test_a_command_that_was_removed_is_refused_and_says_what_to_do(ask):
    code, out, err = ask("plan", "--members", "vllm:Qwen/Qwen3-8B")
    assert code == MISUSED and out == ""
    assert "langchain-specfuse plan is no longer supported" in err and "memory=" in err


@pytest.mark.parametrize("more", [[], ["--quiet"]])
def test_a_refusal_is_shown_but_is_not_the_answer(ask, more):
    no = ScriptedMember.refusal("I cannot help.\x1b[2J")
    code, out, err = ask("Why?", *more, by=[ScriptedMember(no, name="a")])
    assert code == FINE and "I cannot help" not in out
    assert "a refused: I cannot help." in err and "\x1b" not in err
    by = [ScriptedMember(no, name="a"), ScriptedMember(TEXT, name="b")]
    assert TEXT in ask("Why?", *more, by=by)[1]


def test_what_checks_refused_is_below_the_answer_and_not_in_it(ask, tmp_path):
    by = [ScriptedMember("We guarantee it.", name="a"), ScriptedMember("We hope so.", name="b")]
    page = tmp_path / "run.html"
    argv = ("--check", "forbids:guarantee", "--check", "max_words:9", "--html", str(page))
    code, out, _ = ask("Well?", *argv, by=by)
    legend, answer, table = out.split("\n\n", 2)
    assert (code, legend, answer) == (FINE, "a  b", "We hope so.")
    assert "✗ a: 'We guarantee it.' (forbids('guarantee'): contains 'guarantee')" in table
    assert "checks refused 1 draft" in table and "We guarantee it." in page.read_text()
    assert ask("Well?", *argv[:2], "-q", by=by)[:2] == (FINE, "We hope so.\n")
    rounds = [json.loads(line) for line in ask("Well?", *argv[:2], "--json", by=by)[1].splitlines()]
    assert rounds[0]["rejected"][0]["text"] == "We guarantee it."


def test_an_answer_that_no_text_passes_fails_and_shows_why(ask, tmp_path):
    by = [ScriptedMember("We guarantee it.", name="a")]
    page = tmp_path / "run.html"
    code, out, err = ask("Well?", "--check", "forbids:We", "--html", str(page), by=by)
    assert code == FAILED
    assert "error: no text passed the check \"forbids('We')\"" in err
    assert "✗ a: 'We guarantee it.'" in out and "0 rounds, 0 tokens" in out
    run = re.search(r'id="run">(.*?)</script>', page.read_text())[1]
    assert json.loads(run)["rejected"][0]["text"] == "We guarantee it."
    assert ask("Well?", "-q", "--check", "forbids:We", by=by)[1] == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# --- output ---------------------------------------------------------------------------------------


def test_the_command_prints_a_legend_the_answer_and_the_rounds(ask):
    code, out, err = ask("Why?")
    assert code == FINE
    assert out.startswith("alpha  beta  gamma\n\n" + TEXT + "\n\n")
    assert "segment" in out and "margin" in out and "2 rounds (alpha 2), 17 tokens" in out
    assert err == "langchain-specfuse: loading alpha, beta, gamma ...\n"
    by = [ScriptedMember(TEXT, name="a"), ScriptedMember(OTHER, name="b", fails_in=2)]
    assert "b left (error): RuntimeError: scripted failure" in ask("Why?", by=by)[1]
    by = [ScriptedMember(TEXT, name="a"), ScriptedMember(OTHER, name="b", fails_in=2)]
    left = "langchain-specfuse: b left (error): RuntimeError: scripted failure\n"
    assert ask("Why?", "-q", by=by) == (FINE, f"{TEXT}\n", left)
    assert "a stop string appeared" in ask("Why?", "--stop", "scatters")[1]
    assert "the budget was used up" in ask("Why?", "--max-tokens", "4")[1]


def test_the_command_shows_that_the_lead_could_not_be_loaded_and_what_to_do(ask, caplog):
    class Damaged(ScriptedMember):
        def probe(self):
            error = MemberError("the file breaks off", member="big")
            error.add_note("-> download it again")
            raise error

    by = [Damaged(TEXT, name="big"), ScriptedMember(TEXT, name="spare")]
    code, out, _ = ask("Why?", "--lead", "big", by=by)
    assert code == FINE and TEXT in out
    shown = "big left (error): the file breaks off\n   -> download it again\n"
    assert shown in out and out.count("big left") == 1
    assert "big cannot be loaded: the file breaks off\n-> download it again" in caplog.text


@pytest.mark.parametrize("more", [[], ["-q"], ["--json"]])
def test_the_command_says_which_settings_of_the_lead_look_wrong(ask, more, caplog):
    server = FailingServer("a", fails_after=0, how="401")
    model = ChatOpenAI(model="m", base_url=server.url, api_key="none", max_retries=0)
    by = [ChatModelMember(model, name="first"), ScriptedMember(TEXT, name="second")]
    try:
        code, out, err = ask("Why?", *more, by=by)
    finally:
        server.stop()
    assert code == FINE
    assert "settings of first look wrong" in err + caplog.text
    assert "OPENAI_API_KEY" in err + caplog.text
    if "--json" in more:
        assert json.loads(out.splitlines()[0])["left"][0]["kind"] == "denied"


def test_an_error_shows_the_advice_about_each_member_that_failed(ask):
    """With the wrong key of one provider and an unknown model of another, a user saw only what to do
    about the key."""
    servers = [FailingServer("a", fails_after=0, how=status) for status in ("401", "404")]
    by = [
        ChatModelMember(
            ChatOpenAI(model="m", base_url=server.url, api_key="none", max_retries=0), name=name
        )
        for name, server in zip(("first", "second"), servers, strict=True)
    ]
    try:
        code, out, err = ask("Why?", by=by)
    finally:
        for server in servers:
            server.stop()
    assert (code, out) == (FAILED, "")
    assert "first (denied)" in err and "second (not_found)" in err
    assert "OPENAI_API_KEY" in err and "-> second: check the model's name" in err


def test_flags_reach_the_members(ask):
    jobs: list[DraftJob] = []

    class Listening(ScriptedMember):
        def draft(self, batch):
            jobs.extend(batch)
            return super().draft(batch)

    argv = (
        "--system S --temperature 0.5 --top-p 0.9 --seed 7 --max-tokens 6 --segment-tokens 4 "
        "--stop END --stop X"
    )
    ask("Why?", *argv.split(), by=[Listening(TEXT, name="a")])
    job = jobs[0]
    assert [(turn.role, turn.text) for turn in job.query.turns] == [
        ("system", "S"),
        ("user", "Why?"),
    ]
    assert (job.sampling.temperature, job.sampling.top_p, job.sampling.seed) == (0.5, 0.9, 7)
    assert (job.max_tokens, job.segment_tokens, job.stop) == (6, 4, ("END", "X"))


# --- hostile text ---------------------------------------------------------------------------------

HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b31m\r\x08\u202eesrever\u2066\nlangchain-specfuse: ready: http://evil"
HARMLESS = re.compile(r"[\n\t\x20-\x7e\u00a0-\u2029\u202f-\u2065\u206a-\U0010ffff]*")


def assert_harmless(text):
    """Check that the text contains the hostile message, none of its control characters, and no line
    that imitates ours."""
    assert "pwned" in text and "esrever" in text and "ready" in text
    assert HARMLESS.fullmatch(text)
    assert not re.search("^langchain-specfuse: ready", text, re.MULTILINE)


class Hostile(ScriptedMember):
    def draft(self, jobs):
        error = RuntimeError(HOSTILE)
        error.add_note(HOSTILE)
        raise error


@pytest.mark.parametrize("more", [[], ["--quiet"]])
def test_a_members_error_cannot_command_the_terminal(ask, more):
    by = [ScriptedMember(TEXT, name="a"), Hostile(TEXT, name="b")]
    code, out, err = ask("Why?", *more, by=by)
    assert code == FINE
    assert_harmless(out + err)
    code, out, err = ask("Why?", *more, by=[Hostile(TEXT, name="b")])
    assert (code, out) == (FAILED, "")
    assert_harmless(err)


def test_a_members_name_cannot_command_the_terminal(ask):
    by = [ScriptedMember(TEXT, name=name) for name in (HOSTILE, "b")]
    code, out, err = ask("Why?", by=by)
    assert code == FINE
    assert_harmless(out + err)


class Refusing(BaseHTTPRequestHandler):
    """A server that answers every request with a hostile error."""

    def reply(self):
        body = json.dumps({"error": {"message": HOSTILE}}).encode()
        self.send_response(500, "no \x1b[2J")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = reply

    def log_message(self, *args):
        pass


def test_a_servers_error_cannot_command_the_terminal(capsys):
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            code = main(["Why?", "--members", f"http://127.0.0.1:{server.server_port}/v1#m"])
        finally:
            server.shutdown()
            thread.join()
    out, err = capsys.readouterr()
    assert (code, out) == (FAILED, "")
    assert_harmless(err)


NOISY = """
import logging, warnings
from langchain_specfuse import ScriptedMember
from langchain_specfuse.cli import main as cli
from tests.demo_members import replace_demo

class Noisy(ScriptedMember):
    def draft(self, jobs):
        logging.getLogger("another.package").warning("%s", HOSTILE)
        warnings.warn(HOSTILE)
        return super().draft(jobs)

replace_demo([Noisy("Yes.", name="a")])
cli.main = lambda main=cli.main: main(["Why?", "-q"])
cli.command()
"""


def test_log_lines_and_warnings_cannot_command_the_terminal():
    code = f"HOSTILE = {HOSTILE!r}\n{NOISY}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (FINE, "Yes.\n")
    assert done.stderr.count("pwned") == 2
    assert_harmless(done.stderr)


# --- the question ---------------------------------------------------------------------------------


@pytest.fixture
def questions_asked(monkeypatch):
    """Record (member, question) for every member that the command creates."""
    asked: list[tuple[str, str]] = []

    def member(reference, name):
        return ScriptedMember(
            lambda query: asked.append((name, query.turns[-1].text)) or "Yes.", name=name
        )

    monkeypatch.setattr("langchain_specfuse.chat.members._new_member", member)
    yield asked
    unload()


@pytest.mark.parametrize(
    "argv",
    [
        ["Why is it so?", "--members", "a", "b"],
        ["--members", "a", "b", "Why is it so?"],
        ["--members", "a", "b", "--", "Why is it so?"],
        ["--members", "a", "b", "--quiet", "Why is it so?"],
        ["--members", "a", "--verifiers", "b", "Why is it so?"],
        ["--members", "a", "b"],
        ["-", "--members", "a", "b"],
    ],
)
def test_a_question_before_or_after_the_members_or_on_standard_input_is_the_question(
    questions_asked, ask, monkeypatch, argv
):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Why is it so?\n"))
    assert ask("--quiet", *argv)[:2] == (FINE, "Yes.\n")
    assert {question for _, question in questions_asked} == {"Why is it so?"}
    assert {name for name, _ in questions_asked} <= {"a", "b"}


@pytest.mark.parametrize(
    "question",
    [
        '{"name": "Ann"} is valid JSON, or not?',
        "[1, 2, 3]: what is the sum?",
        "{x for x in y} is what?",
    ],
)
def test_a_question_may_begin_with_a_bracket(questions_asked, ask, question):
    assert ask("--quiet", "--members", "a", "b", question)[0] == FINE
    assert set(questions_asked) == {("a", question), ("b", question)}


@pytest.mark.parametrize(
    "member", ['{"model": "b", "name": "c"}', "{'model': 'b', 'name': 'c'}", "{model: x}"]
)
def test_a_member_as_json_is_refused_and_not_taken_for_the_question(
    questions_asked, ask, monkeypatch, member
):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Why?"))
    code, _, err = ask("--quiet", "--members", "a", member)
    assert code == MISUSED and "a member as JSON is no longer supported" in err
    assert "--members FILE.py:NAME" in err and not questions_asked


MEMBERS_IN_A_FILE = """
from langchain_specfuse import ScriptedMember

ann = ScriptedMember("Yes.", name="ann")
both = [ann, ScriptedMember("Yes.", name="bob")]

def made():
    return [ScriptedMember("Yes.", name="cyd"), "org/dan"]
"""


@pytest.mark.parametrize(
    ("name", "names"), [("ann", ["ann"]), ("both", ["ann", "bob"]), ("made", ["cyd", "dan"])]
)
def test_members_that_a_python_file_makes_can_be_named(name, names, tmp_path, monkeypatch):
    file = tmp_path / "models.py"
    file.write_text(MEMBERS_IN_A_FILE)
    arguments = new_parser("", "")
    add_members(arguments)
    named = arguments.parse_args(["--members", f"{file}:{name}", "--verifiers", "eve.gguf"])
    members, verifiers = members_of(named)
    assert (names_of(members), verifiers) == (names, ["eve.gguf"])


def test_a_file_without_such_members_is_an_error(ask, tmp_path):
    file = tmp_path / "models.py"
    file.write_text(MEMBERS_IN_A_FILE)
    code, _, err = ask("--members", f"{file}:nobody", "--", "Why?")
    assert code == MISUSED and "has no 'nobody'" in err and "FILE.py:NAME" in err
    file.write_text("import nothing_like_this")
    code, _, err = ask("--members", f"{file}:ann", "--", "Why?")
    assert code == MISUSED and "cannot be used: ModuleNotFoundError" in err


def test_a_single_word_or_a_folder_after_the_members_is_a_member(
    questions_asked, ask, tmp_path, monkeypatch
):
    (tmp_path / "my own model").mkdir()
    monkeypatch.setattr(sys, "stdin", io.StringIO("Why?"))
    assert ask("--members", "beside", str(tmp_path / "my own model"), "-q")[0] == FINE
    assert {name for name, _ in questions_asked} == {"beside", "my own model"}
    for stdin in (Terminal(), io.StringIO("")):
        monkeypatch.setattr(sys, "stdin", stdin)
        code, out, err = ask("--members", "a", "b", "Why?")
        assert (code, out) == (MISUSED, "")
        assert "taken for members: a, b, Why?" in err
        assert '-> for example: langchain-specfuse "Why is the sky blue?" --members A B' in err


# --- the method -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["main", "eval", "doctor", "serve"])
def test_every_command_takes_the_method_and_lists_its_options(command, capsys):
    parser = importlib.import_module(f"langchain_specfuse.cli.{command}").parser()
    argv = ["--method", "specem", "--method", "exit=studentized"]
    parsed = parser.parse_args([*argv, "questions.jsonl"] if command == "eval" else argv)
    assert options_of(parsed)["method"] == Method.named("specem", exit="studentized")
    for words in (["--method", "help"], ["--help"]):
        with pytest.raises(SystemExit, match="0"):
            parser.parse_args(words)
    printed = " ".join(capsys.readouterr().out.split())
    assert all(f"{name}=" in printed for name in OF_METHOD) and "exit codes" in printed
    assert method_of(["exit=never", "specem", "min-members=1"]) == Method.named(
        "specem", exit="never", min_members=1
    )
    assert method_of([]) == METHODS["robust"]
    with pytest.raises(UsageError, match="--method has no option 'samples'"):
        method_of(["samples=3"])  # it has a flag of its own


# --- notices --------------------------------------------------------------------------------------

NOTICED = """
import logging, sys, warnings
from langchain_specfuse import ScriptedMember
from langchain_specfuse.cli import main as cli
from tests.demo_members import replace_demo

class Reserve(ScriptedMember):
    def draft(self, jobs):
        log = logging.getLogger("langchain_specfuse")
        log.warning("b: a notice\\x1b[2J")
        warnings.warn("an old function", stacklevel=1)
        for number in (1, 2):  # a server reports its start while it starts, which takes minutes
            about = {"module": "vllm_log", "levelno": logging.INFO, "msg": f"b: starting {number}"}
            if log.isEnabledFor(logging.INFO):
                log.handle(logging.makeLogRecord(about))
        return super().draft(jobs)

words = "a b c d e f g h i j k l m n o p q r s t"
lead = ScriptedMember(words, name="a", fails_in=2)
replace_demo([lead, Reserve(words, name="b")])
arguments = ["Why?", "--lead", "a", "--segment-tokens", "4", *sys.argv[1:]]
cli.main = lambda main=cli.main: main(arguments)
sys.argv[1:] = arguments
cli.command()
"""


@pytest.mark.parametrize("more", [[], ["-q"]])
def test_notices_do_not_stand_in_the_text_of_an_answer(more):
    done = subprocess.run(
        [sys.executable, "-c", NOTICED, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # as in a terminal
        text=True,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == FINE and "\x1b[" not in done.stdout
    for notice in ("b: a notice", "an old function", "langchain-specfuse: b: starting"):
        said = [line for line in lines if notice in line]
        begin = "<string>:" if notice == "an old function" else notice
        assert all(line.startswith(begin) for line in said)
        assert bool(said) == (not more or "starting" not in notice)
    if more:
        assert "a b c d e f g h i j k l m n o p q r s t" in lines


# --- mistakes -------------------------------------------------------------------------------------

WRONG = {
    "unknown option": ["Why?", "--colour"],
    "method": ["Why?", "--method", "magic"],
    "option of the method": ["Why?", "--method", "score=magic"],
    "unknown option of the method": ["Why?", "--method", "scores=mean_prob"],
    "not a number": ["Why?", "--max-tokens", "many"],
    "two questions": ["Why?", "How?"],
    "broken text": ["Why\udcff?"],
    "no schema": ["Why?", "--schema", "/nowhere.json"],
    "stop in a choice": ["Why?", "--choice", "a", "--stop", "x"],
    "page in no folder": ["Why?", "--html", "no/such/folder/run.html"],
}


@pytest.mark.parametrize("argv", WRONG.values(), ids=WRONG.keys())
def test_a_mistake_exits_with_2_and_is_named_before_any_member_works(ask, argv):
    by = members()
    code, out, err = ask(*argv, by=by)
    assert (code, out) == (MISUSED, "")
    assert "langchain-specfuse: error: " in err and "Traceback" not in err
    assert not any(member.draft_calls for member in by)


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for background jobs
from langchain_specfuse import ScriptedMember
from langchain_specfuse.cli import main as cli
from tests.demo_members import replace_demo

class Slow(ScriptedMember):
    def draft(self, jobs):
        if self.draft_calls:
            time.sleep(600)
        return super().draft(jobs)

replace_demo([Slow("a b c d e f g h i j k l m n", name="a")])
cli.main = lambda main=cli.main: main(["Why?", "--quiet"])
cli.command()
"""


def test_ctrl_c_exits_with_130_and_no_traceback_and_the_page_is_written(tmp_path):
    page = tmp_path / "run.html"
    code = SLOW.replace('"--quiet"]', f'"--quiet", "--html", {str(page)!r}]')
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        shown = process.stdout.read(len("a b c d e f g h i j"))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, shown + out, err) == (INTERRUPTED, "a b c d e f g h i j\n", "")
    assert len(run_in(page)["rounds"]) == 1 and run_in(page)["error"] == "interrupted"


def test_ctrl_c_leaves_the_rounds_so_far_in_the_table():
    code = SLOW.replace(', "--quiet"', "")
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        legend, blank = process.stdout.readline(), process.stdout.readline()
        shown = process.stdout.read(len("a b c d e f g h i j"))
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, legend, blank, shown) == (
        INTERRUPTED,
        "a\n",
        "\n",
        "a b c d e f g h i j",
    )
    assert re.search(r"^1 +a ", out, re.MULTILINE)


EARLY = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Impatient:
    @staticmethod
    def find_spec(name, *_):
        if name == "langchain_core":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Impatient)
runpy.run_module("langchain_specfuse", run_name="__main__")
"""


def test_ctrl_c_during_the_imports_exits_without_a_traceback():
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")


def test_a_closed_pipe_is_not_an_error():
    code = SLOW.replace("time.sleep(600)", "pass").replace(
        '"--quiet"', '"--quiet", "--segment-tokens", "1"'
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        process.stdout.close()
        assert (process.wait(timeout=60), process.stderr.read()) == (UNREAD, b"")


def test_python_m_runs_the_command():
    """In a process of its own, because it sets what the process logs and warns of."""
    asked = [sys.executable, "-m", "langchain_specfuse", "--version"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"langchain-specfuse {__version__}\n"


FLAGS = {
    "--temperature=hot": ["--temperature", "number", "got 'hot'", "0 is greedy"],
    "--temperature=-1": ["--temperature", "0", "got '-1'", "greedy"],
    "--temperature=nan": ["--temperature", "finite", "greedy"],
    "--max-tokens=1.5": ["--max-tokens", "integer", "got '1.5'", "budget"],
    "--max-tokens=0": ["--max-tokens", "1", "got '0'", "budget"],
    "--top-p=2": ["--top-p", "1", "sample"],
    "--member-timeout=0": ["--member-timeout", "greater than 0", "seconds"],
    "--schema": ["--schema", "value", "JSON schema"],
    "--members": ["--members", "value", "the models that write"],
    "--quiet=3": ["--quiet", "only the answer"],
    "--top-k=3": ["'--top-k'", "all arguments: langchain-specfuse --help"],
    "again": ["'again'", "for example: "],
    "--lead=X": ["--lead", "got 'X'", "alpha, beta, gamma"],
    "--lead=alpa": ["--lead", "did you mean 'alpha'?"],
    "--members={model: x}": ["as JSON", "--members FILE.py:NAME"],
}


def test_a_commands_name_is_a_question_after_two_dashes(ask):
    assert ask("-q", "--", "doctor")[:2] == (FINE, f"{TEXT}\n")


@pytest.mark.parametrize("argument", FLAGS)
def test_a_mistake_in_a_flag_names_the_flag_and_the_way_out_in_two_lines(ask, argument):
    code, out, err = ask("Why?", argument)
    assert (code, out) == (MISUSED, "") and all(part in err for part in FLAGS[argument])
    first, second = err.splitlines()
    assert first.startswith("langchain-specfuse: error: ") and second.startswith("  -> ")


def test_a_lead_that_is_not_the_only_member_is_refused_before_it_works(ask):
    alone = ScriptedMember(TEXT, name="a")
    code, out, err = ask("Why?", "--lead", "X", by=[alone])
    assert (code, out, alone.draft_calls) == (MISUSED, "", 0)
    assert "got 'X'" in err and "the members are a;" in err
    assert ask("Why?", "--lead", "a", "-q", by=[alone])[0] == FINE


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["eval"], "required: FILE.jsonl"),
        (["eval", "q.jsonl", "--limit", "few"], "--limit must be a whole number, got 'few'"),
        (["doctor", "--limit", "3"], "no argument '--limit'"),
        (["serve", "--port", "x"], "--port must be a whole number, got 'x'"),
        (["serve", "--max-waiting", "-3"], "--max-waiting must be greater than or equal to 0"),
    ],
)
def test_a_mistake_in_a_subcommands_flag_is_reported_alike(ask, argv, message):
    code, out, err = ask(*argv)
    assert (code, out) == (MISUSED, "") and message in err
    assert "put a question" not in err and "%(" not in err and len(err.splitlines()) == 2


def test_a_file_that_does_not_exist_is_named_with_its_folder(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))  # as a shell sets it
    code = main(["Why?", "--members", "none.gguf"])
    out, err = capsys.readouterr()
    assert (code, out) == (MISUSED, "") and f"{tmp_path / 'none.gguf'} does not exist" in err


def test_a_similar_file_is_suggested_but_not_any_other(capsys, tmp_path):
    for name in ("broken", "Gemma-3"):
        (tmp_path / f"{name}.gguf").touch()
    main(["Why?", "--members", str(tmp_path / "nope.gguf")])
    assert "did you mean" not in capsys.readouterr().err
    main(["Why?", "--members", str(tmp_path / "gemma3.gguf")])
    assert "Gemma-3.gguf'?" in capsys.readouterr().err


def test_a_missing_key_of_a_hosted_member_names_its_variable(capsys, monkeypatch):
    pytest.importorskip("langchain_openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    code = main(["Why?", "--members", "openai:gpt-4o"])
    out, err = capsys.readouterr()
    assert (code, out) == (MISUSED, "") and "export OPENAI_API_KEY=..." in err


# --- constraints and pages ------------------------------------------------------------------------


def test_a_schema_a_pattern_and_a_choice_are_enforced(ask, tmp_path):
    file = tmp_path / "city.json"
    file.write_text(
        '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
    )
    by = [
        ScriptedMember('{"city": "Rome"}', name="a"),
        ScriptedMember("I think it is Rome.", name="b"),
    ]
    code, out, err = ask("Where?", "--schema", str(file), "-q", by=by)
    assert (code, err, json.loads(out)) == (FINE, "", {"city": "Rome"})
    for argv in (["--choice", "yes", "--choice", "no"], ["--regex", "y[a-z]+"]):
        assert ask("Well?", *argv, "-q", by=[ScriptedMember("yes", name="a")])[:2] == (
            FINE,
            "yes\n",
        )
    for text in ("[1]", "{", "[" * 100_000):
        file.write_text(text)
        code, out, err = ask("Well?", "--schema", str(file))
        assert (code, out) == (MISUSED, "") and "city.json" in err


@pytest.fixture
def city_schema(tmp_path):
    file = tmp_path / "city.json"
    file.write_text(
        '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
    )
    return file


@pytest.mark.parametrize("more", [[], ["-q"], ["--json"]])
def test_a_refusal_instead_of_an_object_fails(ask, city_schema, more):
    """Without a format, a refusal is an answer, and the exit code is 0."""
    refusing = ScriptedMember(ScriptedMember.refusal("I cannot help."), name="a")
    code, out, err = ask("Where?", "--schema", str(city_schema), *more, by=[refusing])
    assert code == FAILED
    last = err.splitlines()[-1]
    assert "error: the answer does not fit --schema" in last
    assert "refused" in last
    if "--json" in more:
        assert json.loads(out.splitlines()[-1])["finish"] == "refusal"
    else:
        assert "a refused: I cannot help." in err
    assert ask("Where?", *more, by=[refusing])[0] == FINE


@pytest.mark.parametrize("more", [[], ["-q"], ["--json"]])
def test_an_object_that_a_check_ends_fails(ask, city_schema, more):
    """A beginning of an object is printed, but a program must not take it for the answer."""
    city = ScriptedMember('{"city": "the eternal city of Rome"}', name="a")
    argv = ["--schema", str(city_schema), "--check", "forbids:Rome", *more]
    code, out, err = ask("Where?", *argv, by=[city])
    assert code == FAILED
    assert "the eternal city" in out
    if "--json" not in more:  # whose rounds contain what was refused
        assert "Rome" not in out.split("✗")[0]
    assert "error: no text passed the check \"forbids('Rome')\"" in err
    argv[3] = "forbids:Paris"
    assert ask("Where?", *argv, by=[city])[0] == FINE


@pytest.mark.parametrize("more", [[], ["-q"], ["--json"]])
def test_an_answer_that_the_budget_cuts_before_it_fits_its_format_fails(
    ask, tmp_path, city_schema, more
):
    file = city_schema
    city = ScriptedMember('{"city": "the eternal city of Rome"}', name="a")
    code, out, err = ask("Where?", "--schema", str(file), "--max-tokens", "3", *more, by=[city])
    assert (code, "the eternal city" in out) == (FAILED, True)
    assert err.splitlines()[-2:] == [
        "langchain-specfuse: error: the answer does not fit --schema: "
        "the budget of 3 tokens was used up",
        "  -> raise --max-tokens",
    ]
    assert ask("Where?", "--schema", str(file), *more, by=[city])[0] == FINE
    words = ScriptedMember("on and on", name="a")
    for pattern, code in [("(on|and| )+", FINE), ("[a-z]+ and [a-z]+", FAILED)]:
        argv = ("--regex", pattern, "--max-tokens", "1", *more)
        assert ask("Well?", *argv, by=[words])[0] == code
    assert ask("Well?", "--max-tokens", "1", *more, by=[words])[0] == FINE


def run_in(page) -> dict:
    """Return the run from which a page was made."""
    return json.loads(re.search(r'id="run">(.*?)</script>', page.read_text())[1])


# --- whole answers --------------------------------------------------------------------------------


def test_the_flags_of_whole_answers_are_those_of_the_fields(ask):
    by = [ScriptedMember("It is 4.", name="ann"), ScriptedMember("It is 5.", name="bob")]
    code, _, err = ask("2 + 2?", "--segment", "answer", "--result", "numbers", by=by)
    assert code == MISUSED and "--result must be one of 'number'" in err
    number = ("--segment", "answer", "--result", "number", "--samples", "2")
    code, out, _ = ask("2 + 2?", *number, "--json", by=by)
    assert list(json.loads(out.splitlines()[0])["drafts"]) == ["ann", "bob", "ann#2", "bob#2"]


def test_an_answer_can_no_longer_be_merged_from_others(ask):
    code, _, err = ask("Why?", "--segment", "answer", "--result", "fuse")
    assert code == MISUSED and "no longer supported" in err and "examples/fusion.py" in err


# --- who leads ------------------------------------------------------------------------------------


def test_explain_says_who_leads_and_why_before_the_answer(ask, tmp_path):
    code, out, _ = ask("Why?", "--explain", "--lead", "gamma")
    assert code == FINE and out.startswith("gamma leads: it was named as the lead\n\n")
    code, out, _ = ask("Why?", "--explain", "--lead", "none")
    assert code == FINE and out.startswith("no member leads: all vote\n\n")
    said = " ".join(ask("Why?", "--explain", "--quiet")[2].split())
    assert "all vote, because none is known to have at least twice the parameters" in said
    assert (
        "gamma unknown), and a verifier, or two members and no chat model, can score drafts" in said
    )
    alone = [ScriptedMember(TEXT, name=name, draft_only=True) for name in ("alpha", "beta")]
    said = " ".join(ask("Why?", "--explain", "--quiet", by=alone)[2].split())
    assert "alpha leads: it is the first member, because none is known" in said
    assert "one of them is a chat model, or fewer than two members can score drafts" in said
    code, out, err = ask("Why?", "--explain", "--lead", "gamma", "-q")
    assert (code, out) == (FINE, f"{OTHER}\n") and "gamma leads: it was named" in err
    by = [ScriptedMember(TEXT, name="alpha")]
    assert "alpha answers: no other member writes\n\n" in ask("Why?", "--explain", by=by)[1]


def test_a_calibration_file_decides_who_leads(ask, tmp_path):
    file = tmp_path / "calibration.json"
    shares = {"alpha": 0.25, "beta": 0.5, "gamma": 0.75}
    Calibration("gamma", shares, 40).save(file)
    code, out, _ = ask("Why?", "--explain", "--calibration", str(file))
    line = "gamma leads: alone, it is right on 75% (alpha 25%, beta 50%) of the questions of the"
    assert code == FINE and out.startswith(line) and OTHER in out
    code, _, err = ask("Why?", "--calibration", str(file), by=[ScriptedMember(TEXT, name="x")])
    assert code == MISUSED and "was made for alpha, beta, gamma" in err
