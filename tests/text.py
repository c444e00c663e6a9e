#!/usr/bin/env python3
"""The text of the code base checks itself: format, widths, paths, invariants.

    text.py ROOT          prints every violation, exits 1 if there is one (77: there is none, but clang-format is missing)
    text.py ROOT --fix    formats sources and wraps Markdown and comments, then checks
    text.py --self-test   plants one violation of each rule in a tree of its own and expects each to be found

Rules: C++ is what clang-format makes of it by .clang-format; no line of Markdown is wider than 110 columns, but for code, tables and
words that are; no path of somebody's machine and no host of somebody's network; a label of an invariant (a comment that begins with
"XX-1  ") is defined by one file; and whoever names one, in a comment, a message or the name of a test, names one that exists.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the tree stays as it is
import reflow

MARKDOWN_MAX, FILLED = 110, 100  # what is refused, and what --fix makes
FORMATTED = (".hpp", ".cpp", ".cu", ".cuh")
GENERATED = (".capnp.h", ".pb.h")
DEFINES = FORMATTED + (".h", ".inc", ".py", ".capnp")
VERSION = 19

PRIVATE = re.compile(r"(?<![\w./~$}<>-])/(?:work|root|check|home/[\w.-]+|Users/[\w.-]+)/[\w.-]")
HOST = re.compile(r"https?://(?:[^\s/@]+@|10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|[\w.-]+\.(?:internal|corp|intranet|lan|local)\b)"
                  r"|\b(?:registry|artifactory|nexus)[\w-]*(?:\.[\w-]+)*\.(?:com|net|org|io|dev|cloud|internal|corp)\b", re.I)
DEFINITION = re.compile(r"[ \t]*(?:(?://|#)[ \t]*)?([A-Z]+)-(\d+)(?:  +|(?<=\d\d) (?=[A-Z]))\S")
MENTION = re.compile(r"(?<![\w-])([A-Z]+)-(\d+)(?![\w-])")
TEST_NAME = re.compile(r"\b(?:BOOST_\w*TEST_CASE\w*\s*\(\s*|def test_)(\w+)")
IN_NAME = re.compile(r"(?<![A-Za-z0-9])([A-Z]+)_(\d+)(?=_)")


def files_of(root):
    """What git knows or would add; without git, all but build folders."""
    if os.path.exists(os.path.join(root, ".git")):
        listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "-z"], stdout=subprocess.PIPE, check=True)
        names = [n for n in listed.stdout.decode().split("\0") if not n.startswith("shared/")]
    else:
        names = []
        for folder, folders, found in os.walk(root):
            folders[:] = [f for f in folders if not f.startswith((".git", "build")) and f not in ("shared", "__pycache__")]
            names += [os.path.relpath(os.path.join(folder, f), root) for f in found]
    return sorted({n for n in names if n and os.path.isfile(os.path.join(root, n))})


def text_of(root, path):
    """None: it is no text."""
    with open(os.path.join(root, path), "rb") as f:
        raw = f.read()
    if b"\0" in raw:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


# --- format

def is_formatted(path):
    return path.endswith(FORMATTED) and not path.endswith(GENERATED)


def clang_format():
    """None: it is not there. Another version's format would be another one."""
    for name in (f"clang-format-{VERSION}", "clang-format"):
        if shutil.which(name) and f" version {VERSION}." in subprocess.run([name, "--version"], stdout=subprocess.PIPE, text=True).stdout:
            return name
    return None


def run_clang_format(root, paths, arguments):
    """What it says, of two processes at a time with many files each."""
    processes = []
    for part in (paths[0::2], paths[1::2]):
        if part:
            processes.append(subprocess.Popen([clang_format(), "--style=file", *arguments, *part], cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    said = [p.communicate()[1] for p in processes]
    if any(p.returncode not in (0, 1) for p in processes):
        raise RuntimeError("clang-format failed: " + "".join(said)[:1000])
    return "".join(said)


def check_format(root, paths):
    seen = set()
    said = run_clang_format(root, paths, ["--dry-run", "--ferror-limit=1"])
    for m in re.finditer(r"^(\S.*?):(\d+):\d+: (?:warning|error): (.*)$", said, re.M):
        if m.group(1) not in seen:
            seen.add(m.group(1))
            yield m.group(1), int(m.group(2)), "differs from what clang-format makes of it (text.py ROOT --fix)"


# --- lines

def check_markdown(text):
    lines = text.split("\n")
    for begin, end, kind in reflow.blocks_of_markdown(lines):
        for i in range(begin, end):
            if kind != "code" and len(lines[i]) > MARKDOWN_MAX and all(len(w) < MARKDOWN_MAX - 20 for w in lines[i].split()):
                yield i + 1, f"{len(lines[i])} columns, of {MARKDOWN_MAX} that Markdown may have (text.py ROOT --fix)"


def check_private(text):
    for pattern, what in ((PRIVATE, "a path of somebody's machine"), (HOST, "a host of somebody's network")):
        for m in pattern.finditer(text):
            yield text.count("\n", 0, m.start()) + 1, f"'{m.group(0)}': {what}"


# --- invariants

def definitions_of(path, text):
    """(label, line)"""
    if not path.endswith(DEFINES):
        return
    for i, line in enumerate(text.split("\n"), 1):
        m = DEFINITION.match(line)
        # Without a comment's sign only in a text at the beginning of a Python file.
        if m and (line.lstrip().startswith(("//", "#")) or path.endswith(".py") and line.startswith(m.group(1))):
            yield f"{m.group(1)}-{m.group(2)}", i


def check_invariants(texts):
    defined, problems = {}, []
    for path, text in texts.items():
        for label, line in definitions_of(path, text):
            defined.setdefault(label, []).append((path, line))
    prefixes = {label.split("-")[0] for label in defined}
    for label, places in defined.items():
        for path, line in places[1:]:
            problems.append((path, line, f"{label} is defined by {places[0][0]}:{places[0][1]} too"))
    for path, text in texts.items():
        named = [(m, m.start()) for m in MENTION.finditer(text) if m.group(1) in prefixes]
        for name in TEST_NAME.finditer(text):
            named += [(m, name.start(1)) for m in IN_NAME.finditer(name.group(1)) if m.start() == 0 or m.group(1) in prefixes]
        for m, at in named:
            if f"{m.group(1)}-{m.group(2)}" not in defined:
                problems.append((path, text.count("\n", 0, at) + 1, f"{m.group(1)}-{m.group(2)} is named, and no file defines it"))
    return problems


def check_tree(root):
    """Problems, how many files, and whether the format was looked at."""
    paths = files_of(root)
    texts = {p: t for p in paths if (t := text_of(root, p)) is not None}
    problems = []
    for path, text in texts.items():
        if path.endswith(".md"):
            problems += [(path, line, what) for line, what in check_markdown(text)]
        problems += [(path, line, what) for line, what in check_private(text)]
    problems += check_invariants(texts)
    sources = [p for p in texts if is_formatted(p)]
    has_format = clang_format() is not None
    if has_format and sources:
        problems += check_format(root, sources)
    problems = [f"{path}:{line}: {what}" for path, line, what in sorted(problems)]
    if not texts:
        problems.append(f"{root}: no files found")
    return problems, len(texts), has_format


# --- --fix

def write(root, path, text):
    with open(os.path.join(root, path), "w", encoding="utf-8") as f:
        f.write(text)


def fix(root):
    """How many files are others now."""
    paths = files_of(root)
    before = {p: t for p in paths if (t := text_of(root, p)) is not None}
    for path, text in before.items():
        if path.endswith(".md"):
            write(root, path, reflow.markdown(text, FILLED))
    sources = [p for p in before if is_formatted(p)]
    if clang_format() is None:
        print(f"skipped: sources, since clang-format-{VERSION} is not installed (tools/setup --tests)")
        sources = []
    # Comments first, so that clang-format finds none that it would have to break; again, since it moves them.
    left, rounds = sources, 0
    while left and rounds < 4:
        was = {p: text_of(root, p) for p in left}
        for path in left:
            write(root, path, reflow.comments(was[path], FILLED))
        run_clang_format(root, left, ["-i"])
        left, rounds = [p for p in left if text_of(root, p) != was[p]], rounds + 1
    return sum(text_of(root, p) != before[p] for p in before)


# --- --self-test

DEFINING = ("runtime/a.hpp", "// AB-1  Something holds.\n")
PLANTED = [
    ([("runtime/a.cpp", "int  a;\n")], "differs from what clang-format makes"),
    ([("README.md", "word " * 30 + "\n")], "columns, of 110"),
    ([("README.md", "- word\n  " + "word " * 30 + "\n")], "columns, of 110"),
    ([("README.md", "# " + "word " * 30 + "\n")], "columns, of 110"),
    ([("tools/a", "cd /" + "work/main\n")], "somebody's machine"),
    ([("runtime/a.cpp", "// as in /" + "home/somebody/a.txt\n")], "somebody's machine"),
    ([("README.md", "See http://" + "files.corp/a.\n")], "somebody's network"),
    ([("tools/a", "pull registry" + ".example.com/a\n")], "somebody's network"),
    ([DEFINING, ("actors/a.hpp", "// AB-1  Something else holds.\n")], "is defined by actors/a.hpp:1 too"),
    ([DEFINING, ("tools/a.py", '"""Text.\n\nAB-1  Something else holds.\n"""\n')], "is defined by runtime/a.hpp:1 too"),
    ([DEFINING, ("runtime/a.cpp", "// As AB-2 says.\n")], "AB-2 is named, and no file"),
    ([DEFINING, ("README.md", "As AB-12 says.\n")], "AB-12 is named, and no file"),
    ([DEFINING, ("tests/a_test.cpp", "// clang-format off\nBOOST_" "AUTO_TEST_CASE(\n    AB_1_AB_3_hold) {}\n")], "AB-3 is named, and no file"),
    ([DEFINING, ("tests/a_test.cpp", "BOOST_" "AUTO_TEST_CASE(CD_1_holds) {}\n")], "CD-1 is named, and no file"),
]
HARMLESS = [
    [("README.md", "| " + "cell " * 30 + "|\n\n```\n" + "code " * 30 + "\n```\n\n    " + "code " * 30 + "\n\n[a](" + "b" * 120 + ")\n")],
    [("tools/a", "cd /tmp/a /usr/lib/b build/work/c ../root/d $HOME/home/e/f\n"), ("README.md", "https://example.com/work/a\n")],
    [DEFINING, ("runtime/a.cpp", "// AB-1: UTF-8, SHA-256, X-1, AB-1..AB-1.\n// --without AB-1-b\n")],
    [DEFINING, ("tests/a_test.cpp", "BOOST_" "AUTO_TEST_CASE(AB_1_texts_are_UTF_8_still) {}\n")],
    [("runtime/a.hpp", "// AB-9   First.\n// AB-10 Second.\n// The rest is like\n// AB-10 in this.\n")],
]
WRAPPED = [
    (reflow.markdown, "a bb ccc - dd\n", "a bb ccc -\ndd\n"),
    (reflow.markdown, "- aa bb `c d` eee\n  ff\n", "- aa bb\n  `c d` eee\n  ff\n"),
    (reflow.markdown, "```\naa bb cc dd ee\n```\n| aa | bb | cc |\n", "```\naa bb cc dd ee\n```\n| aa | bb | cc |\n"),
    (reflow.comments, "// AB-1  a b c d\n", "// AB-1  a\n//       b\n//       c\n//       d\n"),
    (reflow.comments, "int a;  // why so\n", "// Why so.\nint a;\n"),
    (reflow.comments, 'auto a = "// aa bb cc";\n', 'auto a = "// aa bb cc";\n'),
    (reflow.comments, "//   a  b c d e\n//   f  g\n", "//   a  b c\n//      d e\n//   f  g\n"),
]


def self_test():
    failures = []
    has_format = clang_format() is not None
    for planted, expected in [*PLANTED, *((h, None) for h in HARMLESS)]:
        if expected == PLANTED[0][1] and not has_format:
            continue
        with tempfile.TemporaryDirectory() as root:
            for path, text in [(".clang-format", "BasedOnStyle: Google\nColumnLimit: 100\nReflowComments: false\n"), *planted]:
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                write(root, path, text)
            found = check_tree(root)[0]
            if len(found) != (expected is not None) or expected is not None and expected not in found[0]:
                failures.append(f"{planted!r} gave {found}, expected " + (f"one with '{expected}'" if expected else "none"))
    for wrap, text, expected in WRAPPED:
        if wrap(text, 11) != expected:
            failures.append(f"{text!r} became {wrap(text, 11)!r}, not {expected!r}")
    return failures, has_format


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        (problems, has_format), what = self_test(), f"{len(PLANTED)} planted violations found"
    elif len(arguments) == 1 or len(arguments) == 2 and arguments[1] == "--fix":
        if len(arguments) == 2:
            print(f"{fix(arguments[0])} files changed")
        problems, count, has_format = check_tree(arguments[0])
        what = f"{count} files keep the rules"
    else:
        print("usage: text.py ROOT [--fix] | --self-test", file=sys.stderr)
        return 2
    for p in problems:
        print(p)
    if not has_format:
        print(f"skipped: the format of sources, since clang-format-{VERSION} is not installed (tools/setup --tests)")
    print(f"{len(problems)} violations" if problems else what)
    return 1 if problems else 0 if has_format else 77


if __name__ == "__main__":
    sys.exit(main())
