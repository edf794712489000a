"""Limits, locks and checks, each taken away in turn: does the test that names it notice?

    python -m studies.mutants                     # all of them, into results/mutants.json
    python -m studies.mutants --only "host,lock"  # those whose names hold one of these words

The tree is copied; in the copy one line is changed, its test is run there, and the line is put back. A mutant is killed
if the test fails, and survives if it passes. Libraries are
imported once, and every test runs in a fork of that process.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from arr_coc.files import read_json_object, write_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "mutants.json"
COPIED = ("arr_coc", "tests", "studies", "scripts", "pyproject.toml")  # the rest is linked
LIBRARIES = ("torch", "transformers", "gradio", "hypothesis")
MOST_SECONDS = 240
PASSED, FAILED = 0, 1  # pytest's exit codes; any other says that nothing was tested


@dataclass(frozen=True, slots=True)
class Mutant:
    """One line of a file, and what it becomes; the test that must fail then."""

    name: str
    file: str
    old: str
    new: str
    test: str


CHECKPOINTS, RUN, KILLS = "training/checkpoints.py", "training/run.py", "test_training_kills.py::"
GUARD, SERVING, GUARDED = "demo/guarding.py", "demo/serving.py", "test_demo_guard.py::"
GATE, API, LINE = "gateway.py", "serving/app.py", "serving/line.py"
READING, FETCHING, API_GATE = "serving/reading.py", "serving/fetching.py", "test_serving_gate.py::"
SECOND, FOREIGN = KILLS + "test_the_second_run", KILLS + "test_nothing_is_deleted"
FORGED, SET = KILLS + "test_a_forged_checkpoint", GUARDED + "test_every_limit_of_the_server"
LIES, SLOW = GUARDED + "test_a_body_that_lies", GUARDED + "test_a_slow_body"
ROOM, TURNS = GUARDED + "test_uploads_are_bounded", GUARDED + "test_clients_take_turns"
DEMO, PASSWORD = "test_demo.py::", "test_demo.py::test_another_host_needs"
CHILD, ONE = KILLS + "test_a_child_that_outlives", DEMO + "test_one_question_at_a_time"
NAMED, LONG = DEMO + "test_only_named", DEMO + "test_questions_that"

MUTANTS = [
    Mutant(*row)
    for row in (
        ("lock of a run's folder", CHECKPOINTS, "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass", SECOND),
        ("lock says who has it", CHECKPOINTS, "({file.read(200).strip()})", "", SECOND),
        ("children let go of the lock", CHECKPOINTS, "os.register_at_fork(after_in_child=file.close)", "pass", CHILD),
        ("later steps stay", CHECKPOINTS, "if _step(path) <= step]", "]", FOREIGN),
        ("foreign names stay", CHECKPOINTS, "if NAME.fullmatch(path.name)", "if path.name", FOREIGN),
        ("another run's stay", CHECKPOINTS, "state.get(RUN) == run and ", "", FOREIGN),
        ("foreign files stay", CHECKPOINTS, "<= {MANIFEST, *manifest}", "!= set()", FOREIGN),
        ("foreign folders are put aside", CHECKPOINTS, "elif final.exists():", "elif 0:", FOREIGN),
        ("leftovers by their name", CHECKPOINTS, "if WORK.fullmatch(stale.name):", "if stale.name:", FOREIGN),
        ("fsync", CHECKPOINTS, "os.fsync(handle)", "pass", KILLS + "test_what_is_saved_is_on_the_disk"),
        ("sums of the manifest", CHECKPOINTS, "sha256(path) != manifest[path.name]", "False", "test_training_mini.py::"
         "test_a_damaged_checkpoint"),
        ("links and pipes", CHECKPOINTS, "and path.is_file() and not path.is_symlink()", "", FORGED),
        ("paths of the manifest", CHECKPOINTS, "path.parent == checkpoint and ", "", FORGED),
        ("files that must be there", CHECKPOINTS, "<= manifest.keys()", "!= set()", FORGED),
        ("tensors that can be read", CHECKPOINTS, 'safe_open(path, framework="pt")', "pass", FORGED),
        ("step of the state", CHECKPOINTS, '["step"] == _step(checkpoint)', '["step"] > 0', FORGED),
        ("only what the manifest names", CHECKPOINTS, "for name in manifest if name.endswith",
         "for name in os.listdir(checkpoint) if name.endswith", KILLS + "test_files_that_the_manifest"),
        ("SIGTERM saves", RUN, '"SIGTERM", ', "", KILLS + "test_a_run_that_is_asked_to_end"),
        ("workers leave signals alone", "training/data.py", "signal.signal(one, signal.SIG_IGN)", "pass",
         KILLS + "test_a_run_that_is_asked_to_end"),
        ("a complete checkpoint stays", CHECKPOINTS, "if is_complete(final, list(tensors)):", "if False:",
         KILLS + "test_a_complete_checkpoint_is_never"),
        ("size of a body", GATE, "if self.got > self.limit:", "if False:", LIES),
        ("size that is said", GATE, "413: self.size > self.limit", "413: False", GUARDED + "test_a_body_that_says"),
        ("slow bodies", GATE, "asyncio.wait_for(self._receive(), max(0.0, left))", "self._receive()", SLOW),
        ("Host and Origin", GATE, "not all(map(is_local, hosts))", "False", GUARDED + "test_a_name_that_leads_here"),
        ("Origin", GATE, '("host", "origin")', '("host",)', GUARDED + "test_a_name_that_leads_here"),
        ("names that may be called", GUARD, "named[1] not in PUBLIC", "False", GUARDED + "test_only_what_is_public"),
        ("calls past the queue", GUARD, "await self._from_page()", "pass", GUARDED + "test_calls_past_the_queue"),
        ("uploads of a client", GUARD, "own + size <= MOST_OF_CLIENT and ", "", ROOM),
        ("uploads in all", GUARD, " and sum(taken for *_, taken in self.uploads) + size <= MOST_STORED", "", ROOM),
        ("uploads are counted", GUARD, "self.gate.uploads.append(", "print(", ROOM),
        ("errors are hidden", GUARD, 'message["status"] >= 400', "False", GUARDED + "test_errors_of_the_application"),
        ("request ids", GATE, '(b"x-request-id", self.number.encode())', "", GUARDED + "test_what_is_in_bounds"),
        ("somebody listens", GUARD, "listened and (", "(", GUARDED + "test_nothing_begins"),
        ("what is given up", GUARD, "< PATIENCE:", "< 10**9:", GUARDED + "test_nothing_begins"),
        ("private handlers", GUARD, 'event.fn.api_visibility == "public"', "True", GUARDED + "test_what_is_not_public"),
        ("one client in the queue", GUARD, ">= MOST_OF_ONE:", ">= 10**9:", GUARDED + "test_nobody_fills"),
        ("turns of sessions", GUARD, "self.served[lane[0]], self.served[lane]", "self.served[lane[0]], 0", TURNS),
        ("turns of machines", GUARD, "self.served[lane[0]], self.served[lane]", "0, self.served[lane]", TURNS),
        ("closed pages are forgotten", GUARD, "sessions.session_data.pop(session, None)", "pass",
         GUARDED + "test_a_page_that_is_gone"),
        ("lines that are held", GATE, "before is None or before.response_complete", "False", GUARDED + "test_a_line"),
        ("queue", SERVING, "max_size=MOST_WAITING, ", "", SET),
        ("sessions", SERVING, "state_session_capacity=MOST_SESSIONS,", "", SET),
        ("size of an upload", SERVING, "max_file_size=MOST_BYTES,", "", SET),
        ("connections", GATE, "config.limit_concurrency = MOST_CONNECTIONS", "pass", SET),
        ("password for other hosts", GATE, "if secret is None and not is_loopback(host):", "if False:", PASSWORD),
        ("length of a password", GATE, "len(secret) < LEAST_SECRET", "False", PASSWORD),
        ("key of the API", API, "401: not is_let_in, ", "", API_GATE + "test_without_the_key"),
        ("requests at once", API, "429: self.full and", "429: False and", API_GATE + "test_so_many_at_once"),
        ("faults of the API", API, "if self.status != 500:", "if True:", API_GATE + "test_a_fault_is_told"),
        ("pixels of a request", API, "> service.limits.pixels:", "> 10**12:", API_GATE + "test_what_is_wrong_is_told"),
        ("the client leaves", API, "self._ticket.left.set()", "pass", API_GATE + "test_a_client_that_leaves"),
        ("places of the line", LINE, "len(self.taken) >= self.places", "False", API_GATE + "test_a_full_line"),
        ("pixels of the line", LINE, "held + pixels > MOST_PIXELS_IN_ALL", "False", API_GATE + "test_so_many_pixels"),
        ("each alone", LINE, "len(batch) > 1 and not ticket.spoke.is_set()", "False", API_GATE + "test_one_bad"),
        ("unknown fields", READING, "name in known, ", "True, ", API_GATE + "test_what_is_wrong_is_told"),
        ("a plain 1 is all", READING, "1.0 if type(found[0]) is int and found[0] == 1 else found[0]", "found[0]",
         API_GATE + "test_a_plain_one"),
        ("public addresses", FETCHING, "not all(map(is_public, found))", "False", API_GATE + "test_one_address_inside"),
        ("addresses inside addresses", FETCHING, "any(found in network for network in EMBEDDING)", "False", API_GATE
         + "test_addresses_that_are"),
        ("redirects", FETCHING, "if answer.status != 200:", "if False:", API_GATE + "test_what_leads_away"),
        ("hosts that were named", FETCHING, "or not has_name ", "", API_GATE + "test_nothing_is_fetched"),
        ("old files", "demo/page.py", "delete_cache=(HOUR, HOUR)", "delete_cache=None", GUARDED + "test_old_files"),
        ("attention of long texts", "demo/ask.py", "attended <= MOST_ATTENDED", "True", DEMO + "test_the_attention_of"),
        ("memory of a session", "demo/microscope.py", "image=looked.picture)", "image=looked.asked.image)",
         DEMO + "test_a_session_remembers"),
        ("one question at a time", "demo/models.py", "with self._lock:", "if True:", ONE),
        ("models in memory", "demo/models.py", "len(self._loaded) >= self._most", "False", DEMO + "test_at_most_two"),
        ("models that were named", "demo/models.py", "if name not in self._sources:", "if False:", NAMED),
        ("length of a question", "demo/inputs.py", "len(text) > MOST_CHARACTERS", "False", LONG),
        ("messages of others", "demo/telling.py", "not PRIVATE.search(text)", "True", DEMO + "test_what_is_not_ours"),
        ("control characters", "cli/answers.py", "text.translate(UNSEEN)", "text", GUARDED + "test_what_could_steer"),
        ("answers in the terminal", "cli/ask.py", "typer.echo(harmless(answer.text))", "typer.echo(answer.text)",
         "test_cli.py::test_an_answer_does_not_steer"),
    )
]  # fmt: skip


def copy_tree(target: Path) -> None:
    """What is changed and run as copies, everything else as links."""
    leave = shutil.ignore_patterns("__pycache__", "*.xz", ".venv")
    for path in ROOT.iterdir():
        if path.name not in COPIED:
            (target / path.name).symlink_to(path)
        elif path.is_dir():
            shutil.copytree(path, target / path.name, ignore=leave)
        else:
            shutil.copy(path, target / path.name)


def run_test(tree: Path, test: str) -> int:
    """Exit code of the test in the tree, from a fork of this process; -1 where it took too long."""
    file, _, name = test.partition("::")
    child = os.fork()
    if not child:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = sys.path[0] = str(tree)
        for loaded in [one for one in sys.modules if one.split(".")[0] in ("arr_coc", "studies")]:
            del sys.modules[loaded]
        import pytest

        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not soak", f"--timeout={MOST_SECONDS}"]
        code = pytest.main([*options, f"tests/{file}", "-k", name])
        os._exit(int(code))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def judge(tree: Path, mutant: Mutant) -> str:
    """Whether the mutant is killed or survives; what else it may be: stale, or without a test."""
    file = tree / "arr_coc" / mutant.file
    whole = file.read_text()
    if whole.count(mutant.old) != 1:
        return "stale"
    try:
        file.write_text(whole.replace(mutant.old, mutant.new))
        code = run_test(tree, mutant.test)
    finally:
        file.write_text(whole)
    return {PASSED: "survived", FAILED: "killed"}.get(code, f"not tested, pytest ended with {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Take limits away, and see whether tests notice.")
    parser.add_argument("--only", default="", help="words of names, with commas between")
    words = [word for word in parser.parse_args().only.split(",") if word]
    for library in LIBRARIES:
        __import__(library)
    found = read_json_object(RESULTS).get("mutants", {})
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        for mutant in MUTANTS:
            if words and not any(word in mutant.name for word in words):
                continue
            began = time.monotonic()
            found[mutant.name] = {"verdict": judge(Path(folder), mutant), "file": mutant.file, "test": mutant.test}
            print(f"{found[mutant.name]['verdict']:>10}  {mutant.name}  {time.monotonic() - began:.0f} s", flush=True)
            listed = {one.name: found[one.name] for one in MUTANTS if one.name in found}
            killed = sum(one["verdict"] == "killed" for one in listed.values())
            summary = {"command": "python -m studies.mutants", "listed": len(MUTANTS), "run": len(listed)}
            write_json(RESULTS, {**summary, "killed": killed, "mutants": listed})


if __name__ == "__main__":
    main()
