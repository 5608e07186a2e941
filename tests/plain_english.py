"""Check code, docs and commit subjects against the rules of docs/contributing.md, "Plain English".

`make check` runs it from the root of the repository. It finds patterns of unclear names and sentences; a
sentence without any of them can still be unclear.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

PLACES = ("nbcache", "docs", "README.md", "CHANGELOG.md")
VAGUE = {
    *(
        "after",
        "anew",
        "asked",
        "before",
        "counted",
        "each",
        "found",
        "given",
        "held",
        "here",
        "kept",
        "known",
    ),
    *("made", "met", "now", "noted", "ones", "others", "rest", "said", "seen", "taken", "then", "thing"),
    *("things", "told", "what", "whole"),
}
"""Names that do not say what a variable holds."""
PARTICIPLE = re.compile(
    r"_?([a-z]+ed|begun|brought|built|chosen|drawn|found|given|gone|held|kept|known|left|made|met|said|seen|sent"
    r"|shown|taken|told|written)"
)
OPENER = re.compile(r"(What|Who|Whose|Which|Where|How|Of|Have|Tells?|Told)\b")
PHRASE = re.compile(
    r"\b(tells? (of|nothing)|nothing tells|no more(?= *([,.;:)]|$))|any more|as ever|the very same|anew"
    r"|whatever (it|they) (is|are)|(come|comes|came) to by|for good|how manieth|that is none|nobody who"
    r"|of (theirs|ours|yours|\w+'s(?= *([,.;:)]|$)))|(what|which) (is|was) there|what came|who it is)\b",
    re.IGNORECASE,
)
NEGATION = re.compile(
    r"\b(no|not|none|nothing|nobody|never|neither|nor|without|cannot|unless|\w+n't)\b", re.IGNORECASE
)
MOST_NEGATIONS, MOST_WORDS, MOST_SUBJECT = 2, 32, 72
CONVERTED = "returns its argument, converted"
RIGHT = {
    **dict.fromkeys(
        (
            "admitted",
            "aligned",
            "attributed",
            "counted",
            "hashed",
            "merged",
            "quoted",
            "redacted",
            "_redacted",
            "restricted",
            "signed",
            "spelled",
            "united",
            "wrapped",
        ),
        CONVERTED,
    ),
    "asked": "a field of the format of traces",
    "before": "the old value in a JSON format, `Difference.before`",
    "found": "a field of a JSON format, `Check.found`",
    "known": "the `KnownPackages` of a fingerprint",
    "kept": "a field of a JSON format: the number of artifacts that stay",
    "made": "whether this process made an artifact that it records",
    "now": "the new value in a JSON format, `Difference.now`",
    "others": "a field of JSON formats: cells or settings of other kinds",
    "what": "the subject of an error or of a JSON format: what, where, what next",
}
"""Name or sentence → the reason why it is right in its place."""


def sentence_problems(text: str) -> Iterator[str]:
    for sentence in re.split(r"(?<=[.;:!?])\s+", " ".join(text.split())):
        if sentence in RIGHT:
            continue
        if match := PHRASE.search(sentence):
            yield f"unclear phrase {match[0]!r}: {sentence}"
        if len(NEGATION.findall(sentence)) > MOST_NEGATIONS:
            yield f"more than {MOST_NEGATIONS} negations: {sentence}"
        if len(sentence.split()) > MOST_WORDS:
            yield f"more than {MOST_WORDS} words: {sentence}"


def docstring_problems(text: str) -> Iterator[str]:
    lines = inspect.cleandoc(text).splitlines()
    text = "\n".join(line for line in lines if not line.startswith("    "))  # without literal blocks
    if OPENER.match(text):
        yield f"the sentence does not begin with its subject: {text.splitlines()[0]}"
    yield from sentence_problems(text)


def node_problems(node: ast.AST) -> Iterator[str]:
    names = []
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = node.args
        names = [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
        is_participle = PARTICIPLE.fullmatch(node.name)
        if is_participle and not is_property and node.name not in RIGHT:
            yield f"the function {node.name}() is named by a participle"
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        names = [node.id]
    yield from (
        f"the name {name!r} says nothing" for name in names if name.lstrip("_") in VAGUE - RIGHT.keys()
    )
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        yield from docstring_problems(node.value.value)


def python_problems(path: Path) -> Iterator[tuple[int, str]]:
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        for problem in node_problems(node):
            yield getattr(node, "lineno", 1), problem
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from ((token.start[0], problem) for problem in sentence_problems(token.string.lstrip("# ")))


def markdown_problems(path: Path) -> Iterator[tuple[int, str]]:
    paragraph, is_code = "", False
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        is_code ^= line.lstrip().startswith("```")
        if is_code or not line.strip() or line.lstrip().startswith(("|", "#", "```", "<", "!")):
            yield from ((number, problem) for problem in sentence_problems(paragraph))
            paragraph = ""
        else:
            paragraph += line + "\n"


def subject_problems() -> Iterator[str]:
    """Yield the problems of the commits that `origin/main` lacks; none outside of a clone."""
    command = ["git", "log", "--format=%s", "origin/main..HEAD"]
    subjects = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    for subject in subjects:
        if len(subject) > MOST_SUBJECT or not subject[:1].isupper() or subject.endswith("."):
            yield f"the commit subject is long, or no sentence of the form 'Do this': {subject}"


def main() -> int:
    problems = [*subject_problems()]
    for place in map(Path, PLACES):
        for path in sorted(place.rglob("*") if place.is_dir() else [place]):
            find = {".py": python_problems, ".md": markdown_problems}.get(path.suffix)
            problems += [f"{path}:{line}: {problem}" for line, problem in find(path)] if find else []
    print(*problems, f"Plain English: {len(problems)} problems", sep="\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
