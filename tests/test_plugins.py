"""Plug-ins: found by entry point and by import path, refused when they are loaded, and run.

A small package (`tests/plugin_package`, the code of docs/extending.md) is installed into a folder of its own,
which is on the path of other processes, and of this one for the tests that ask for it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from scripted import TEXTS, Target, collect, make_engine, oracle, prompt, run

from grimboost import Log, LogError, MisuseError
from grimboost.adapters.conformance import Effort, check_target
from grimboost.engine import Engine
from grimboost.errors import ModelReferenceError
from grimboost.gate_rules import WatchedRule, digest_with, make_rule
from grimboost.loading import load_target, make_drafter
from grimboost.messages import Spans
from grimboost.plugin_checks import Kind
from grimboost.plugins import GROUPS, installed, is_target_plugin, load_plugin
from grimboost.replaying import replay

PACKAGE = Path(__file__).parent / "plugin_package"
DOCUMENT = Path(__file__).parent.parent / "docs" / "extending.md"

LETTER = b"Dear you, I hope this message finds you well. I am writing to inform you of 2 things. 2 things, yes."


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package is installed."""
    source, site = tmp_path_factory.mktemp("source") / "package", tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    pip += ["--disable-pip-version-check", "--target", str(site), str(source)]
    subprocess.run(pip, check=True, capture_output=True)
    return site


@pytest.fixture
def letters(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is installed here, too."""
    monkeypatch.syspath_prepend(str(site))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a module that can be imported; it is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written = []

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


def offer(folder: Path, distribution: str, group: str, line: str) -> None:
    """Metadata of an installed distribution with one entry point."""
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{line}\n")


def refused(kind: Kind, reference: str) -> str:
    with pytest.raises(MisuseError) as caught:
        load_plugin(kind, reference)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def command(site: Path, *arguments: str, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """The installed command, which does not look into its current folder by itself."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    start = "import sys; sys.path.remove(''); from grimboost.command_line import main; main()"
    words = [sys.executable, "-c", start, *arguments]
    return subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, check=False)


# ---------------------------------------------------------------- the document


@pytest.mark.parametrize(
    "file", ["pyproject.toml", *(f"letters/{name}.py" for name in ("phrases", "rules", "instruments", "targets"))]
)
def test_the_document_shows_the_code_that_is_tested_here(file: str) -> None:
    language = "toml" if file.endswith(".toml") else "python"
    assert f"```{language}\n{(PACKAGE / file).read_text()}```\n" in DOCUMENT.read_text()


# ---------------------------------------------------------------- found and run


def test_a_package_is_installed_found_by_name_and_run_in_another_process(site: Path) -> None:
    script = """
import anyio
from grimboost import Engine
async def main():
    async with await Engine.load(
        "alphabet", drafter="phrases", gate="no-numbers", instruments=["passes"], certificates="memory"
    ) as engine:
        print(await engine.complete([20], mode="streaming", release="always"))
        print(engine.drafter.name, engine.gate_rule.name)
anyio.run(main)
"""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "b'vwxyz'\nphrases no-numbers\n"
    assert "rows, busy for" in done.stderr


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("reference", ["phrases", "letters.phrases:PhraseBook"])
def test_a_drafter_by_name_or_path_drafts_and_changes_no_byte(reference: str) -> None:
    async def main() -> None:
        async with make_engine(Target((LETTER,)), reference) as engine:
            generation = engine.generate(prompt())
            assert await collect(generation) == LETTER
            assert generation.result.statistics.accepted_bytes > 50

    run(main)


@pytest.mark.usefixtures("letters")
def test_a_gate_rule_holds_its_spans_and_the_log_says_so_and_needs_it_again(tmp_path: Path) -> None:
    record = tmp_path / "run.grimlog"

    async def main() -> None:
        engine = make_engine(Target((LETTER,)), oracle((LETTER,)), gate="no-numbers")
        async with engine:
            generation = engine.generate(prompt(), record=record, mode="streaming", release="always")
            assert await collect(generation) == LETTER
            assert generation.result.statistics.released_tokens > 0
            strict = engine.generate(prompt(), record=tmp_path / "strict.grimlog")
            assert await collect(strict) == LETTER

    run(main)
    log = Log.open(record)
    assert log.header.gate_rule == "no-numbers"
    answers = [answer for entry in log for answer in entry.answers if isinstance(answer, Spans)]
    reasons = {(one.span.data, one.reason) for answer in answers for one in answer.spans}
    assert (b"2", "rule: number") in reasons
    assert {data for data, reason in reasons if reason == "rule: number"} == {b"2"}
    assert replay(log, load_plugin("gate", "letters.rules:NoNumbers")) is None
    with pytest.raises(LogError, match="made with the gate rule 'no-numbers'"):
        replay(log)
    assert replay(tmp_path / "strict.grimlog") is None
    with pytest.raises(LogError, match="made without a gate rule"):
        replay(tmp_path / "strict.grimlog", load_plugin("gate", "no-numbers"))


@pytest.mark.usefixtures("letters")
def test_a_target_by_name_has_what_its_plugin_says_and_keeps_the_contract() -> None:
    loaded = load_target("alphabet")
    assert loaded.end_ids == {26: ["end of the alphabet"]}
    check_target(lambda: load_target("letters.targets:Alphabet").target, Effort(rows=(1, 2, 8), sampling=False))
    with pytest.raises(MisuseError, match="no use for precision, kernels or threads"):
        load_target("alphabet", precision="int4")


@pytest.mark.usefixtures("letters")
def test_an_alias_and_a_path_come_before_a_plugin_and_a_plugin_before_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, "other", GROUPS["target"], "smollm2-135m = letters.targets:alphabet")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not is_target_plugin("smollm2-135m")
    assert is_target_plugin("alphabet") and is_target_plugin("letters.targets:alphabet")
    assert not is_target_plugin("owner/name") and not is_target_plugin("alphabets")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alphabet").mkdir()
    assert not is_target_plugin("alphabet") and not is_target_plugin("x\0y")
    with pytest.raises(ModelReferenceError, match=r"no plug-in \(alphabet \(grimboost-letters 0.1\)"):
        load_target("alphabets")


@pytest.mark.usefixtures("letters")
def test_an_instrument_by_name_listens(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with make_engine(drafter="none", instruments=["passes"]) as engine:
            assert await engine.complete(prompt()) == TEXTS[0]

    run(main)
    assert "batches" in capsys.readouterr().err


def test_an_instance_a_class_a_function_and_a_dotted_name_are_all_plugins(module: Any) -> None:
    rule = "class Rule:\n    name = 'r'\n    def hold(self, offset, span, confidence, tail): pass\n"
    module("made", f"{rule}one = Rule()\nclass Box:\n    inner = Rule\ndef make(): return Rule()\n")
    for name in ("one", "Rule", "make", "Box.inner"):
        assert load_plugin("gate", f"made:{name}").name == "r"
    assert load_plugin("gate", "made:one") is sys.modules["made"].one


# ---------------------------------------------------------------- not found, not loadable


@pytest.mark.usefixtures("letters")
def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    assert refused("drafter", "phrase") == (
        "there is no drafter 'phrase'; known are lookup (built in), none (built in), phrases (grimboost-letters "
        "0.1). An own one is given as package.module:name"
    )
    assert "there is no gate 'phrases'; known are no-numbers" in refused("gate", "phrases")
    for reference in ("", "a:", ":b", "a b:c", "a:b:c", "a/b:c", "1a:b"):
        assert f"there is no instrument {reference!r}" in refused("instrument", reference)


def test_without_any_plugin_that_is_said() -> None:
    assert "there is no gate 'x'; none is installed" in refused("gate", "x")


def test_an_import_that_fails_is_refused_with_its_module_and_reason(module: Any) -> None:
    module("broken", "import a_module_that_is_not_there\n")
    module("exits", "raise SystemExit('I would rather not')\n")
    module("empty", "thing = {}\n")
    module("fails", "class A:\n    def __init__(self, path): pass\ndef b(): raise ValueError('two\\nlines')\n")
    assert "importing not_there.at_all fails with ModuleNotFoundError" in refused("drafter", "not_there.at_all:x")
    assert (
        refused("gate", "broken:x") == "the gate 'broken:x' cannot be loaded: importing broken fails with "
        "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"
    )
    assert "SystemExit: I would rather not" in refused("gate", "exits:x")
    assert "empty.py) has no nothing.here" in refused("gate", "empty:nothing.here")
    assert "without arguments: TypeError" in refused("drafter", "fails:A")
    assert "without arguments: ValueError: two lines" in refused("drafter", "fails:b")


def test_two_distributions_with_one_name_are_told_apart_by_path(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for distribution in ("alpha", "beta"):
        module(f"of_{distribution}", "class Rule:\n    name = 'r'\n    def hold(self, o, s, c, t): pass\n")
        offer(tmp_path, distribution, GROUPS["gate"], f"same = of_{distribution}:Rule")
    text = refused("gate", "same")
    assert "offered twice: of_alpha:Rule (alpha 1.0) and of_beta:Rule (beta 1.0)" in text
    assert load_plugin("gate", "of_beta:Rule").name == "r"


def test_what_is_built_in_wins_and_listing_imports_nothing(module: Any, tmp_path: Path) -> None:
    offer(tmp_path, "alpha", GROUPS["drafter"], "lookup = explodes:Drafter")
    module("explodes", "raise RuntimeError('imported')\n")
    assert [one.reference for one in installed("drafter")] == ["explodes:Drafter"]
    assert type(make_drafter("lookup")).__name__ == "LookupDrafter"
    assert make_drafter("none") is None
    assert "explodes" not in sys.modules


def test_an_entry_point_that_leads_to_no_attribute_is_refused(module: Any, tmp_path: Path) -> None:
    module("whole", "")
    offer(tmp_path, "alpha", GROUPS["gate"], "rule = whole")
    assert refused("gate", "rule") == "alpha 1.0 offers gate 'rule' at 'whole', which is no module:name"


# ---------------------------------------------------------------- interfaces

NAMED = "name = 'x'\n"
BEGIN = NAMED + "def begin(self): return self\n"
EXTEND = BEGIN + "def extend(self, committed): pass\n"
ALL = EXTEND + "def propose(self, ahead, limit): return Proposal()\n"


def proposing(answer: str) -> str:
    """A drafter, whole but for what it proposes."""
    return f"{EXTEND}def propose(self, ahead, limit): return {answer}\n"


DRAFTERS = [
    ("def begin(self): return self", "has no attribute name (str)"),
    ("name = 7\ndef begin(self): return self", "has a name that is no str: 7"),
    ("name = ''\ndef begin(self): return self", "has a name that is empty"),
    ("name = property(lambda self: 1 / 0)\ndef begin(self): return self", "raises ZeroDivisionError"),
    (NAMED, "has no method begin()"),
    (NAMED + "begin = 'now'", "has no method begin(): its begin is 'now'"),
    (NAMED + "async def begin(self): pass", "has an async begin"),
    (NAMED + "def begin(self, text): pass", "has a method begin(text) that does not take 0 arguments"),
    (NAMED + "def begin(self): raise OSError('no file')", "fails in begin(): OSError('no file')"),
    (EXTEND, "makes a session that has no method propose(ahead, limit)"),
    (BEGIN + "def propose(self, ahead, limit): pass", "makes a session that has no method extend(committed)"),
    (
        EXTEND + "def propose(self, limit): pass",
        "has a method propose(limit) that does not take 2 arguments; it is called as propose(ahead, limit)",
    ),
    (proposing("b'x'"), "proposes b'x', which is no Proposal"),
    (proposing("1 / 0"), "fails in a trial with b'one two"),
    (proposing("Proposal(b'xy', (DraftToken(1, 0.5),))"), "draft tokens cover 1 bytes of a proposal of 2"),
    (proposing("Proposal(b'x', (DraftToken(1, 2.0),))"), "with confidence 2.0"),
    (proposing("Proposal(b'x' * 99, (DraftToken(99, 0.5),))"), "99 bytes proposed, 8 were asked for"),
    (ALL + "def remember(self, prompt, output): pass", "has no method settle()"),
    (ALL + "def slipped(self): pass", "has a method slipped() that does not take 1 argument;"),
    (ALL + "breaks = 1", "has no method breaks(offsets): its breaks is 1"),
]


@pytest.mark.parametrize(("body", "message"), DRAFTERS)
def test_a_drafter_with_a_wrong_interface_is_refused_with_what_is_missing(
    module: Any, body: str, message: str
) -> None:
    imports = "from grimboost.adapters.drafter import Proposal\nfrom grimboost.messages import DraftToken\n"
    module("drafters", f"{imports}class Drafter:\n{indent(body, '    ')}\n")
    text = refused("drafter", "drafters:Drafter")
    assert text.startswith("the drafter 'drafters:Drafter' ")
    assert message in text


def test_all_that_is_missing_is_said_at_once(module: Any) -> None:
    module("drafters", "class Drafter: pass\n")
    text = refused("drafter", "drafters:Drafter")
    assert text == "the drafter 'drafters:Drafter' has no attribute name (str); it has no method begin()"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    name = 'x'\n", "has no method hold(offset, span, confidence, tail)"),
        ("    name = 'x'\n    def hold(self, span): pass\n", "hold(span) that does not take 4 arguments"),
        ("    name = 'x'\n    def hold(self, *all): return True\n", "answers True in hold"),
        ("    name = 'x'\n    def hold(self, *all): raise KeyError(1)\n", "fails in a trial"),
        (
            "    name = 'x'\n    asked = 0\n    def hold(self, *all):\n        self.asked += 1\n"
            "        return str(self.asked)\n",
            "answers the same question differently",
        ),
    ],
)
def test_a_gate_rule_with_a_wrong_interface_is_refused(module: Any, body: str, message: str) -> None:
    module("rules", f"class Rule:\n{body}")
    assert message in refused("gate", "rules:Rule")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    def watch(self): pass\n", "has none of the hooks generation_started, "),
        ("    def turn(self): pass\n", "has a method turn() that does not take 1 argument"),
        ("    async def batch(self, batch): pass\n", "has an async batch"),
        ("    def on_turn(self, turn): pass\n", "has a method on_turn, which is no hook; turn is meant, perhaps"),
        (
            "    def taken(self, run, event, at): pass\n    def generation_start(self, one): pass\n",
            "has a method generation_start, which is no hook; generation_started is meant",
        ),
    ],
)
def test_an_instrument_with_a_wrong_hook_is_refused(module: Any, body: str, message: str) -> None:
    module("watching", f"class Instrument:\n{body}")
    assert message in refused("instrument", "watching:Instrument")


def test_methods_beside_the_hooks_are_an_instruments_own_affair(module: Any) -> None:
    body = "    def turn(self, turn): pass\n    def turns(self): pass\n    def report(self): pass\n"
    module("watching", f"class Instrument:\n{body}")
    load_plugin("instrument", "watching:Instrument")


def test_a_target_with_a_wrong_interface_is_refused(module: Any) -> None:
    module(
        "targets",
        "class Target:\n    facts = 7\n    open_slots = 0\n"
        "    def open(self): pass\n    def step(self, batch): pass\n    def length(self, slot): pass\n"
        "    def close(self, slot): pass\n",
    )
    text = refused("target", "targets:Target")
    for part in (
        "has a facts that is no TargetFacts: 7",
        "has no attribute vocabulary (Vocabulary)",
        "has a method open() that does not take 1 argument; it is called as open(rule)",
        "has no method rollback(slot, length)",
    ):
        assert part in text
    with pytest.raises(MisuseError, match="has no method rollback"):
        load_target("targets:Target")


class Shout:
    name = "shout"


def test_objects_are_looked_at_too_before_anything_runs() -> None:
    with pytest.raises(MisuseError, match=r"the drafter Shout has no method begin\(\)"):
        make_engine(drafter=Shout())  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match=r"the instrument Shout has none of the hooks"):
        make_engine(instruments=[Shout()])
    with pytest.raises(MisuseError, match=r"the gate Shout has no method hold\(offset, span, confidence, tail\)"):
        make_engine(gate=Shout())


@pytest.mark.parametrize("option", [{"drafter": "nobody"}, {"gate": "nobody"}, {"instruments": ["nobody"]}])
def test_a_wrong_plugin_is_refused_before_a_target_is_loaded(
    option: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grimboost.engine.load_target", lambda *_: pytest.fail("a target was loaded"))

    async def main() -> None:
        with pytest.raises(MisuseError, match="there is no"):
            await Engine.load("smollm2-135m", **option)

    run(main)


# ---------------------------------------------------------------- gate rules in the engine


class Careful:
    name = "careful"

    def __init__(self, **more: str) -> None:
        vars(self).update(more)

    def hold(self, offset: int, span: Any, confidence: float, tail: bytes) -> str | None:
        return None


class Nobody:
    name = "nobody"

    def begin(self) -> Any:
        raise NotImplementedError


def test_evidence_made_with_a_rule_is_apart_from_evidence_without_it() -> None:
    drafter = Nobody()
    digests = [digest_with(drafter, make_rule(rule)) for rule in (None, Careful(), Careful(digest="2"))]
    assert len(set(digests)) == 3
    assert digests[0] == "nobody"
    engine = make_engine(drafter=drafter, gate=Careful())
    account = engine._certifier.account("default", 0.01, 0.05, lambda _: None)
    assert account is not None and [key.drafter for key in engine._certifier.domains] == [digests[1]]


def test_a_rule_that_fails_is_a_warning_once_and_holds_all(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        name = "broken"

        def hold(self, offset: int, span: Any, confidence: float, tail: bytes) -> str | None:
            raise KeyError("price")

    async def main() -> None:
        async with make_engine(Target(), oracle(), gate=Broken()) as engine:
            generation = engine.generate(prompt(), mode="streaming", release="always")
            assert await collect(generation) == TEXTS[0]
            assert generation.result.statistics.released_tokens == 0

    run(main)
    assert caplog.text.count("a gate rule fails") == 1


def test_a_rule_is_wrapped_once() -> None:
    rule = make_rule(Careful())
    assert isinstance(rule, WatchedRule) and make_rule(rule) is rule and make_rule(None) is None


# ---------------------------------------------------------------- the command


def test_the_command_lists_and_checks_what_is_installed(site: Path, tmp_path: Path) -> None:
    done = command(site, "plugins")
    assert (done.returncode, done.stderr) == (0, "")
    for line in ("phrases  grimboost-letters 0.1  letters.phrases:PhraseBook", "lookup   built in"):
        assert line in done.stdout
    shutil.copytree(site, tmp_path, dirs_exist_ok=True)
    (tmp_path / "letters" / "phrases.py").write_text("class PhraseBook:\n    name = 'phrases'\n")
    done = command(tmp_path, "plugins", "--check", "--json")
    found = {(one["kind"], one["name"]): one for one in json.loads(done.stdout)}
    assert done.returncode == 1
    assert found["drafter", "phrases"]["problem"].endswith("has no method begin()")
    for kind, name in (("gate", "no-numbers"), ("instrument", "passes"), ("target", "alphabet")):
        assert found[kind, name]["checked"] and found[kind, name]["problem"] is None
    assert not found["drafter", "lookup"]["checked"]


def test_the_command_says_what_is_wrong_in_one_line(site: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Shout:\n    name = 'shout'\n")
    for arguments, message in (
        (("--drafter", "phrase"), "there is no drafter 'phrase'; known are lookup (built in), "),
        (("--drafter", "mine:Shout"), "the drafter 'mine:Shout' has no method begin()"),
        (("--mode", "streaming", "--gate", "mine:Shout"), "the gate 'mine:Shout' has no method hold("),
        (("--gate", "no-numbers"), "gate has no meaning in mode 'strict'; choose mode 'streaming'"),
        (("--instrument", "passes", "--instrument", "mine:Shout"), "the instrument 'mine:Shout' has none of the"),
        (("--target", "alphabet", "--drafter", "phrases"), "no tokenizer; give the prompt as token ids"),
    ):
        done = command(site, "generate", "hello", *arguments, folder=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert message in done.stderr.splitlines()[-1], done.stderr
