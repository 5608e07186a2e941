"""Run all that needs a GPU, and write what came of it as JSON: `python tests/gpu/everything.py FOLDER`.

Time on a card is short: the tests come first, then the notebook, then the benchmark, what matters most first.
Whatever ends this, what was done stays in FOLDER/gpu.json, and the same command goes on from there; with
FOLDER copied along, on another machine with the same card, torch and nbcache, too. FOLDER/gpu.ipynb is the
notebook with its outputs. nbcache must be importable, with what its extra `test` names.

    --minutes N     end after so many (default: 60), in good order
    --parts NAME,…  of: tests, notebook, bench
    --jobs N        tests at once (default: 4)
    --size NAME     of the benchmark's models: full (default) or small
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
PARTS = ("tests", "notebook", "bench")
MODELS = ("gpt2", "nanogpt", "bert", "llama", "resnet50")
MODES = ("default", "max-autotune", "reduce-overhead")
ABOUT = """\
import json, platform, subprocess, torch, triton, nbcache
from nbcache.torch_bridge import gpus
properties = torch.cuda.get_device_properties(0)
print(json.dumps({
    "card": properties.name, "gigabytes": round(properties.total_memory / 2**30, 1),
    "device": gpus.device(), "capability": [properties.major, properties.minor],
    "torch": torch.__version__, "cuda": torch.version.cuda,
    "triton": triton.__version__, "python": platform.python_version(), "nbcache": nbcache.__version__,
    "computes": torch.arange(8, device="cuda").sum().item() == 28,
}))
"""


class Run:
    """What is done, and the time that is left for more."""

    def __init__(self, folder: Path, minutes: float) -> None:
        self.folder = folder
        self.file = folder / "gpu.json"
        self.until = time.monotonic() + 60 * minutes
        about = json.loads(subprocess.check_output([sys.executable, "-c", ABOUT], cwd=ROOT, text=True))
        known = json.loads(self.file.read_text()) if self.file.exists() else {}
        if known and known["about"] != about:
            raise SystemExit(f"{self.file} is of another machine or version: {known['about']}, here {about}")
        self.results: dict[str, Any] = known or {"about": about, "tests": {}, "notebook": {}, "bench": {}}

    def save(self) -> None:
        """Replace the file whole."""
        written = self.file.with_suffix(".new")
        written.write_text(json.dumps(self.results, indent=1))
        written.replace(self.file)

    @property
    def seconds_left(self) -> float:
        return self.until - time.monotonic()

    def command(self, *arguments: str) -> int | None:
        """Run a command of this interpreter; return its exit status, or None where time ran out."""
        environ = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.getenv("PYTHONPATH"))))
        }
        print("$", *arguments, flush=True)
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env=environ, start_new_session=True
        )
        try:
            return process.wait(max(1.0, self.seconds_left))
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)


def tests(run: Run, jobs: int) -> None:
    """Run the tests that have not passed yet."""
    passed = {name for name, result in run.results["tests"].items() if result["outcome"] == "passed"}
    deselected = [f"--deselect={name}" for name in sorted(passed)]
    report = run.folder / "tests.xml"
    report.unlink(missing_ok=True)
    options = ("-q", "-m", "gpu", "-n", str(jobs), "-p", "no:cacheprovider", f"--junitxml={report}")
    run.command("-m", "pytest", *options, *deselected, "tests/gpu")
    if report.exists():
        run.results["tests"].update(read(report))


def read(report: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tests of a report of pytest's, by the names that pytest takes."""
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        problem = next((each for each in case if each.tag in ("failure", "error", "skipped")), None)
        yield (
            name,
            {
                "outcome": "passed" if problem is None else problem.tag,
                "seconds": float(case.get("time", 0)),
                "why": "" if problem is None else (problem.text or problem.get("message", ""))[-2000:],
                "found": {each.get("name"): each.get("value") for each in case.iter("property")},
            },
        )


def notebook(run: Run) -> None:
    """Execute the notebook for GPUs, and keep it with its outputs."""
    if run.results["notebook"].get("outcome") == "passed":
        return
    begun = time.monotonic()
    path = ROOT / "notebooks" / "gpu.ipynb"
    executed = nbformat.read(path, as_version=4)
    client = NotebookClient(
        executed,
        kernel_name="python3",
        timeout=max(1, int(run.seconds_left)),
        resources={"metadata": {"path": str(path.parent)}},
    )
    problem = ""
    with tempfile.TemporaryDirectory() as empty:  # where nothing was compiled before
        environ = os.environ | {"NBCACHE_DIR": f"{empty}/store", "TMPDIR": empty}
        try:
            client.execute(env=environ)
        except Exception as error:  # a cell failed, or took too long
            problem = str(error)[-2000:]
    nbformat.write(executed, run.folder / "gpu.ipynb")
    run.results["notebook"] = {
        "outcome": "failure" if problem else "passed",
        "seconds": time.monotonic() - begun,
        "why": problem,
    }


def bench(run: Run, size: str) -> None:
    """Measure model by model, and mode by mode, each in a file of its own that is then taken over."""
    for mode in MODES:
        for model in MODELS:
            for what in ("inference", "training"):
                name = f"{model} {what} {mode}"
                if run.seconds_left < 60 or run.results["bench"].get(name, {}).get("done"):
                    continue
                report = run.folder / f"{name.replace(' ', '-')}.json"
                subject = (model, f"--{what}", "--mode", mode, "--size", size, "--device", "cuda")
                few = ("--runs", "1", "--idle", "full", "--compile-once")
                status = run.command("-m", "benchmarks", *subject, *few, "--json", str(report))
                found = json.loads(report.read_text()) if report.exists() else None
                run.results["bench"][name] = {"done": status == 0, "report": found}
                run.save()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--size", choices=("full", "small"), default="full")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    run = Run(given.folder.absolute(), given.minutes)
    run.save()
    parts = given.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts has {', '.join(sorted(unknown))}: they are {', '.join(PARTS)}")
    for part, action in (
        ("tests", lambda: tests(run, given.jobs)),
        ("notebook", lambda: notebook(run)),
        ("bench", lambda: bench(run, given.size)),
    ):
        if part in parts and run.seconds_left > 0:
            action()
            run.save()
    outcomes = [each["outcome"] for each in run.results["tests"].values()]
    done = sum(each["done"] for each in run.results["bench"].values())
    counts = ", ".join(f"{outcomes.count(each)} {each}" for each in sorted(set(outcomes)))
    print(
        f"tests: {counts or 'none'}; notebook: {run.results['notebook'].get('outcome', 'not run')}; ", end=""
    )
    print(f"bench: {done} of {len(MODELS) * len(MODES) * 2}; {run.file}")
    whole = done == len(MODELS) * len(MODES) * 2 and run.results["notebook"].get("outcome") == "passed"
    sys.exit(0 if whole and not {"failure", "error"} & set(outcomes) else 1)


if __name__ == "__main__":
    main()
