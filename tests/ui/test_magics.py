"""`%nbcache` and loading, in a real shell of a fresh interpreter; nothing is compiled."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

from nbcache.core.key import components
from nbcache.core.model import Artifact, Direction, Environment, GraphSummary, Manifest, Outcome
from nbcache.core.reports import Cell
from nbcache.sharing.trust import Keyring, spelled
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.store import ArtifactStore
from nbcache.torch_bridge import environment
from support.people import HOSTILE, Person, hostile_snapshot
from support.shells import SHELL, value_in_shell


@pytest.fixture
def in_shell(run_python):
    """Return a function that evaluates an expression after `SHELL` and returns its value."""
    return lambda expression: value_in_shell(run_python, f"value = {expression}")


def test_config_shows_each_setting_with_its_value_and_origin(in_shell, isolated):
    shown = json.loads(in_shell('run("%nbcache config --json")["text"]'))

    rows = shown["settings"] + shown["torch"]
    by_name = {row["name"]: row for row in rows}
    assert by_name["dir"]["value"] == isolated["NBCACHE_DIR"]
    assert by_name["dir"]["origin"] == "environment, NBCACHE_DIR"
    assert (by_name["max_bytes"]["value"], by_name["max_bytes"]["origin"]) == ("5GB", "default")
    assert by_name["TORCHINDUCTOR_CACHE_DIR"]["origin"] == "not known before torch is imported"
    assert all(row["help"] for row in rows)


def test_a_setting_can_be_changed_and_says_by_what(in_shell):
    text = in_shell('[run("%nbcache config max_bytes=500MB live=off"), run("%nbcache config")][1]["text"]')

    (line,) = [line for line in text.splitlines() if line.startswith("  max_bytes")]
    assert "500MB" in line and "%nbcache config" in line


def test_names_in_braces_stand_for_values_but_in_what_is_diagnosed(in_shell):
    local = "def f():\n    name = 'live'\n    %nbcache config {name}\nf()"
    cells = ["name = 'max_bytes'", "%nbcache config {name}", local, "%nbcache diagnose len({name})(1)"]
    *_, one, within, diagnosed = (ran["text"] for ran in in_shell(f"[run(cell) for cell in {cells!r}]"))

    assert "`max_bytes` needs a value" in one
    assert "`live` needs a value" in within
    assert "`len({name})` computes the function that it calls" in diagnosed


def test_what_is_not_understood_fails_with_one_clean_message(in_shell):
    cases = [
        ("%nbcache docter", "did you mean `doctor`? %nbcache help shows all verbs"),
        ("%nbcache status --jsn", "`--jsn` is not understood"),
        ("%nbcache stats now", "`now` is not understood. Usage: %nbcache stats [--json]"),
        ("%nbcache plan In[1]", "`In[1]` is not understood. Usage: %nbcache plan [--json]"),
        ("%nbcache diagnos model(x)", "did you mean `diagnose`"),
        ("%nbcache diagnose", "diagnose: `` is no call. Usage: %nbcache diagnose"),
        ("%nbcache doctor model.ipynb", "doctor: `model.ipynb` is not understood. Usage: %nbcache"),
        ("%nbcache config 'x", "no closing quotation"),
        ("%nbcache config max_byte=1", "did you mean 'max_bytes'?"),
        ("%nbcache config max_bytes=lots", "such as 500MB or 5GB"),
        ("%nbcache config max_bytes=5", "at least 1MB is needed"),
        ("%nbcache config live=maybe", "on or off is needed"),
        ("%nbcache config report=x", "always, magic or never is needed"),
        ("%nbcache config trust=x", "strict, ask or off is needed"),
        ("%nbcache config shared_timeout=0", "seconds from 0.01 to 600 are needed"),
        (
            "%nbcache config TORCHINDUCTOR_FX_GRAPH_CACHE=off",
            "assign True or False to torch._inductor.config.fx_graph_cache",
        ),
        ("%nbcache config TORCHINDUCTOR_CACHE_DIR=/x", "set TORCHINDUCTOR_CACHE_DIR in the environment"),
        ("%nbcache config live", "`live` needs a value, live=VALUE"),
        ("%nbcache config dir=/elsewhere", "set NBCACHE_DIR"),
        (
            "%nbcache snapshot redis://:s3cret@host/0",
            "write the store's URL, # and a name: redis://host#team/gpt",
        ),
        ("%nbcache restore redis://:s3cret@127.0.0.1:1/0#team/gpt", "Redis cannot be reached"),
        (
            "%nbcache clear everything",
            "`everything` is not understood. Usage: %nbcache clear [--yes]; %nbcache clear --all",
        ),
        ("%nbcache help me", "`me` is not understood. Usage: %nbcache help"),
        ("%nbcache connect one two", "`two` is not understood. Usage: %nbcache connect [URL]"),
        ("%nbcache trust --name", "`--name` needs a value. Usage: %nbcache trust [--yes]"),
        ("%nbcache graphs --json", "takes at most one graph"),
        ("%nbcache panel graph", "there is no panel `graph`"),
        ("%nbcache clear --all", "nbcache cannot ask for your answer here; if you are sure, add --yes"),
        ("%nbcache bench nanogpt", "neither a notebook nor a function"),
    ]
    everything = in_shell(f"[run(line) for line, _ in {cases!r}]")
    for (line, said), ran in zip(cases, everything, strict=True):
        assert not ran["success"], line
        assert said in ran["text"]
        assert "Traceback" not in ran["text"]
        assert "s3cret" not in ran["text"]


ASK = "builtins = __import__('builtins'); builtins.input = lambda question: print(question) or 'n'"
LOADED = SHELL + "\nimport time; time.sleep(0.5)"


def store_graphs(isolated, path, environments, *cells):
    """Store a graph of each cell of a notebook, by its digest, for each environment; return the store."""
    isolated["NBCACHE_NOTEBOOK"] = str(path)
    artifacts = ArtifactStore(DirectoryStore(Path(isolated["NBCACHE_DIR"])))
    for here in environments:
        ref = artifacts.put(here.digest, Artifact("inductor", "key0", b"content"))
        graphs = [
            GraphSummary(cell, "f", Direction.INFERENCE, Outcome.MISS, f"key{number}", 15.5, (ref.digest,))
            for number, cell in enumerate(cells)
        ]
        artifacts.save_manifest(Manifest(here, str(path), (ref,), tuple(graphs)))
    return artifacts


def other_torch(here):
    return Environment(components({**here.values, "torch.version": "1.0"}))


def test_loading_says_in_one_line_what_is_stored_and_is_silent_where_reports_never_come(
    run_python, isolated, tmp_path
):
    def loaded(more=""):
        return run_python(LOADED + more, having="IPython").stdout

    assert loaded() == "nbcache: loaded · nothing is stored here yet\n"
    isolated["NBCACHE_NOTEBOOK"] = str(tmp_path / "model.ipynb")
    assert loaded() == "nbcache: loaded · nothing of model.ipynb is stored here yet\n"

    here = environment.foreseen()
    store_graphs(isolated, tmp_path / "model.ipynb", [here, other_torch(here)], "", "")
    said = "nbcache: loaded · 2 graphs of model.ipynb are stored here · saves about 31.0 s\n"
    assert loaded() == said
    isolated["NBCACHE_REPORT"] = "never"
    assert loaded() == ""
    clear, sure = (f"run('%nbcache clear{word}')['text']" for word in ("", " --yes"))
    said = loaded(f"\nsys.__stdout__.write({clear} + run({ASK!r})['text'] + {clear} + {sure})").splitlines()
    assert said[0].endswith(
        "%nbcache clear: nbcache cannot ask for your answer here; if you are sure, add --yes"
    )
    what = "4 graphs, 1 artifact of model.ipynb. torch's folder is emptied for all notebooks"
    assert said[1:3] == [
        f"nbcache: This would be removed: {what}. Go on? [y/N] ",
        "nbcache: nothing was removed",
    ]
    assert said[3] == "nbcache: removed 1 artifact from the local store"


def test_clearing_says_what_goes_and_all_goes_only_when_it_is_asked_for(in_shell):
    cases = ["%nbcache clear --yes", "%nbcache clear --all --yes"]
    one, every, _, refused = in_shell(
        f"[*(run(line)['text'] for line in {cases!r}), run({ASK!r}), run('%nbcache clear --all')['text']]"
    )

    assert one == "nbcache: removed 0 artifacts from the local store\n"
    assert every == "nbcache: removed 0 entries from the local store\n"
    assert "of 0 notebooks and more. Go on? [y/N]" in refused and refused.endswith(
        "nbcache: nothing was removed\n"
    )


def test_one_can_say_who_one_is_before_the_first_snapshot_and_whom_one_trusts_in_the_notebook(in_shell):
    friend = "ab" * 32
    lines = [
        "%nbcache trust",
        f"%nbcache trust add {friend} --name Ada",
        "%nbcache trust list",
        f"%nbcache trust show {spelled(friend)[:19]}",
        f"%nbcache trust remove {friend}",
        "%nbcache trust everybody",
    ]
    own, added, listed, known, removed, wrong = (
        ran["text"] for ran in in_shell(f"[run(line) for line in {lines!r}]")
    )

    grouped = "[0-9a-f]{4}(-[0-9a-f]{4}){15}"
    assert re.search(f"{grouped}  yours: tell others this fingerprint", own)
    assert added == f"nbcache: trusted from now on: {spelled(friend)} (Ada)\n"
    assert own.splitlines()[2] == listed.splitlines()[0]
    assert f"{spelled(friend)}  trusted: Ada" in listed
    assert spelled(friend) in known and "no longer trusted" in removed
    assert "%nbcache trust add SIGNER [--name NAME]" in wrong


def test_a_signer_is_trusted_from_the_notebook_under_the_name_that_the_user_types(in_shell, tmp_path):
    ada = Person(tmp_path / "ada")
    ada.make("one")
    fingerprint = spelled(Keyring(ada.keys).own() or "")
    answers = "import builtins; builtins.input = lambda question: print(question) or answers.pop(0)"
    cells = [
        f"%nbcache config notebook={ada.notebook}",
        f"answers = ['y', '']; {answers}",
        "%nbcache trust",
        f"%nbcache trust remove {fingerprint}",
        "answers = ['y', 'Ada L.']",
        "%nbcache trust",
        "%nbcache trust list",
        f"%nbcache restore {ada.snapshot}",
    ]
    ran = in_shell(f"[(run(cell), looked())[0]['text'] for cell in {cells!r}]")
    _, _, asked, _, _, again, listed, restored = ran

    assert "Compare the fingerprint with what they tell you another way." in asked
    assert f"Signer: {fingerprint}\nTrust this signer from now on? [y/N]" in asked
    # the name is shown, and an empty answer does not choose it
    assert "Which name do you give this signer? (calls itself ada)" in asked
    assert asked.endswith(f"nbcache: {fingerprint[:19]} is trusted\n")
    assert again.endswith(f"nbcache: {fingerprint[:19]} is trusted as Ada L.\n")
    assert f"{fingerprint}  trusted: Ada L." in listed
    assert "restored" in restored


def test_restoring_what_a_stranger_has_signed_is_one_line_and_no_error(in_shell, tmp_path):
    ada = Person(tmp_path / "ada")
    ada.make("one")
    restore = f"%nbcache restore {ada.snapshot}"
    first, trusted, second = in_shell(
        f"[run(line) for line in [{restore!r}, '%nbcache trust --yes --name Ada', {restore!r}]]"
    )

    assert first["success"] and trusted["success"] and second["success"]
    (line,) = first["text"].splitlines()
    assert line.startswith("nbcache: model.nbcache: 1 graph of a stranger (says ada@engine)")
    assert line.endswith("who signed it, is not trusted here (%nbcache trust)")
    assert "model.nbcache is restored when torch is imported" in second["text"]


def test_one_name_is_given_to_one_stranger(in_shell, tmp_path):
    ada, eve = Person(tmp_path / "ada"), Person(tmp_path / "eve")
    ada.make("one")
    shutil.copy(ada.snapshot, eve.snapshot)
    eve.make("two")
    cells = [
        f"%nbcache config notebook={eve.notebook}",
        "%nbcache trust --yes --name Ada",
        "%nbcache trust list",
    ]
    _, refused, listed = in_shell(f"[(run(cell), looked())[0]['text'] for cell in {cells!r}]")

    assert "a name is for one signer, and 2 are not trusted" in refused
    assert "Ada" not in listed


def test_no_magic_shows_what_steers_a_terminal(in_shell, tmp_path):
    shutil.copy(hostile_snapshot(tmp_path), tmp_path / HOSTILE)
    beside = tmp_path / f"{HOSTILE}.ipynb"
    shutil.copy(tmp_path / HOSTILE, beside.with_suffix(".nbcache"))
    beside.write_text("{}")
    cells = [
        f"import shlex; name, beside = {str(tmp_path / HOSTILE)!r}, {str(beside)!r}",
        "magic = lambda *words: get_ipython().run_line_magic('nbcache', shlex.join(words))",
        "magic('config', f'notebook={beside}')",
        *(f"magic({verb!r}, name)" for verb in ("restore", "verify", "snapshot")),
        "magic('trust', 'add', name)",
        "__import__('nbcache').session().restore(__import__('pathlib').Path(name))",
        *(f"magic({verb!r})" for verb in ("trust", "doctor", "plan", "config", "restore", "panel")),
    ]
    texts = in_shell(f"[(run(cell), looked())[0]['text'] for cell in {cells!r}]")
    assert sum("evil" in text for text in texts) > 5
    for text in texts:
        assert all(line.isprintable() and not line.startswith("?[200") for line in text.split("\n")), text


def test_an_empty_session_has_a_status(in_shell):
    status = json.loads(in_shell('[run("1 + 1"), run("%nbcache status --json")][1]["text"]'))

    assert [cell["graphs"] for cell in status["cells"]] == [[]]
    assert status["stores"][0]["name"] == "local store" and status["stores"][0]["entries"] == 0


def test_the_doctor_forgets_the_problems_of_the_notebook_before(in_shell, tmp_path):
    (tmp_path / "broken.nbcache").write_bytes(b"no snapshot")
    doctor = "[json.loads(run('%nbcache doctor --json')['text'])['checks']][0]"
    rows = f"looked() or [each['state'] for each in {doctor} if each['name'].startswith('snapshot')]"
    change = "run('%nbcache config notebook={}')"
    before, _, after = in_shell(
        f"[{change.format(tmp_path / 'broken.ipynb')} and ({rows}),"
        f" {change.format(tmp_path / 'other.ipynb')}, {rows}]"
    )

    assert (before, after) == (["problem"], ["ok"])


def test_completion_offers_our_words_and_nothing_else(in_shell, tmp_path):
    (tmp_path / "one.nbcache").touch()
    cases = {
        "%%compile_cached --mo": ["--mode"],
        "%nbcache stat": ["stats", "status"],
        "%nbcache pl": ["plan"],
        "%nbcache time": ["timeline"],
        "%nbcache doc": ["doctor"],
        "%nbcache doctor --": ["--json"],
        "%nbcache diag": ["diagnose"],
        "%nbcache diagnose print(1) --ru": ["--runs"],
        "%nbcache config max": ["max_bytes="],
        "%nbcache config live=": ["off", "on"],
        "%nbcache config save=off live=of": ["off"],
        "%nbcache trust re": ["remove"],
    }
    more = ["%%compile_cached --", "%%compile_cached f\nprin", f"%nbcache restore {tmp_path}/on"]
    *found, options, names, paths = in_shell(f"[complete(line) for line in {[*cases, *more]!r}]")
    assert found == list(cases.values())
    assert set(options) >= {"--mode", "--quiet", "--require-hit"}
    assert all(word.startswith("--") for word in options)
    assert "print" in names and any(path.endswith("one.nbcache") for path in paths)


def test_reloading_leaves_one_of_everything(in_shell):
    again = "run('%reload_ext nbcache')"
    threads = "sorted(t.name for t in threading.enumerate() if t.name.startswith('nbcache-live'))"

    assert in_shell(f"[{again}, {again}, run('%unload_ext nbcache'), {threads}][-1]") == []
    assert in_shell(f"[{again}, {again}, len(shell.events.callbacks['pre_run_cell'])][-1]") == 1


def test_without_the_extension_there_is_no_session(run_python):
    done = run_python("import nbcache; nbcache.session()", check=False)

    assert done.returncode == 1
    assert "nbcache is not loaded here" in done.stderr


def test_silent_and_empty_cells_leave_the_reports_in_step(in_shell):
    silent = "shell.run_cell('%%compile_cached\\n1', silent=True)"
    empty = "run('get_ipython().run_cell(\\'\\')')"
    count = (
        "[__import__('nbcache').session().report() is not None, len(__import__('nbcache').session().reports)]"
    )

    assert in_shell(f"[{silent}, {empty}, run('%%compile_cached\\n2'), run('3'), {count}][-1]") == [True, 3]
    assert (
        in_shell(f"[{silent}, run('%%compile_cached nosuch\\n2')['text'].count('does not exist')][-1]") == 1
    )


def test_loading_in_a_silent_execution_is_followed_by_reports(run_python):
    code = SHELL.replace(
        'shell.run_line_magic("load_ext", "nbcache")', 'shell.run_cell("%load_ext nbcache", silent=True)'
    )
    done = run_python(
        f"{code}\nrun('1'); run('2')\nimport nbcache; print(len(nbcache.session().reports))", having="IPython"
    )

    assert done.stdout.split()[-1] == "2"


def test_stats_and_plan_have_something_to_say_where_nothing_has_compiled_and_no_notebook_is_known(
    in_shell, tmp_path
):
    absent, broken = tmp_path / "absent.ipynb", tmp_path / "broken.ipynb"
    broken.write_text("no JSON")
    lines = [
        "%nbcache stats",
        "%nbcache plan",
        f"%nbcache config notebook={absent}",
        "%nbcache plan",
        f"%nbcache config notebook={broken}",
        "%nbcache plan",
        "%nbcache plan --json",
        "%nbcache stats --json",
    ]
    everything = in_shell(f"[run(line) for line in {lines!r}]")
    assert all(ran["success"] for ran in everything)
    stats, unknown, _, missing, _, unreadable, plan, figures = (ran["text"] for ran in everything)
    assert stats.startswith("nbcache stats · this kernel · nothing compiled")
    assert "nbcache does not know this kernel's notebook: %nbcache config notebook=PATH" in unknown
    assert "absent.ipynb · there is no such file: save the notebook first" in missing
    assert "broken.ipynb · this is not a readable notebook" in unreadable
    assert json.loads(plan)["problem"] and json.loads(plan)["cells"] == []
    assert json.loads(figures)["session"]["graphs"] == 0


def test_loading_says_that_a_cell_was_edited_since(run_python, isolated, tmp_path):
    path, foreseen = tmp_path / "model.ipynb", environment.foreseen()
    artifacts = store_graphs(isolated, path, [foreseen], Cell.of("f(x)", None).digest)

    def loaded(*sources):
        nbformat.write(
            nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources]), path
        )
        return run_python(LOADED, having="IPython").stdout

    said = "nbcache: loaded · 1 graph of model.ipynb is stored here · saves about 15.5 s"
    here, _, saves = said.rpartition(" · ")
    assert loaded("x = 1", "f(x)") == f"{here} · 1 of 1 graph expected to hit · {saves}\n"
    edited = "0 of 1 graph expected to hit · 1 cell was edited since · about 15.5 s cold"
    assert loaded("x = 1", "f(x) + 1") == f"{here} · {edited}\n"
    path.write_text("no JSON")
    assert run_python(LOADED, having="IPython").stdout == f"{said}\n"

    manifest = artifacts.load_manifest(foreseen, str(path))
    assert manifest is not None
    (graph,) = manifest.graphs
    removed = replace(graph, cell=Cell.of("f(old)", None).digest, key="b")
    artifacts.save_manifest(replace(manifest, graphs=(graph, removed)))
    assert run_python(LOADED, having="IPython").stdout.startswith("nbcache: loaded · 2 graphs of model.ipynb")
    assert loaded("x = 1", "f(x)") == f"{here} · 1 of 1 graph expected to hit · {saves}\n"


def test_loading_says_that_what_is_stored_does_not_fit(run_python, isolated, tmp_path):
    store_graphs(isolated, tmp_path / "model.ipynb", [other_torch(environment.foreseen())], "")
    said = "nbcache: loaded · 1 graph of model.ipynb is stored here, and does not fit (%nbcache plan)\n"
    assert run_python(LOADED, having="IPython").stdout == said
