#!/usr/bin/env python3
"""Mistakes in pipelines, as the compiler tells of them: in ten lines at most, with the reason in words and the user's line among the first.

    diagnostics.py SOURCE BUILD

GCC 12 is the project's compiler; clang-19 is asked, too, where it is installed. Where the reason is a static_assert, GCC names the user's line above it
("required from here"), clang right below it.
"""

import concurrent.futures
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import limits

LINES_MAX = 10
FIRST = 7  # lines, among which the user's is

# What it is, the statement, and what has to be said of it (by each compiler, where that is not Troupe's to say).
MISTAKES = [
    ("a stage that takes another type", "collect(map(numbers, [](std::string text) { return text.size(); }));", ["map: the stage does not take the items of this flow"]),
    ("a predicate that returns nothing", "collect(filter(numbers, [](int x) { std::printf(\"%d\", x); }));", ["filter: the function does not take an item of this flow and return bool"]),
    ("a zip of one flow", "collect(zip(numbers));", ["zip: one flow has no partner"]),
    ("a key function for another type", "collect(partition_by(numbers, [](const std::string& word) { return word; }, total{}));",
     ["partition_by: the key's function does not take the items of this flow"]),
    ("for_each where a flow is needed", "collect(for_each(numbers, [](int) {}));", ["invalid use of void expression", "no matching function for call to 'collect'"]),
    ("a generator with a resource", "collect(map(numbers, with(db, [](int x, int&) -> generator<int> { co_yield x; })));",
     ["with: a generator would keep its unit while others wait"]),
    ("a function that takes no unit", "collect(map(numbers, with(db, [](int x) { return x; })));", ["map: the stage does not take the items of this flow"]),
    ("a source that is a function that returns a generator", "collect(source(t, []() -> generator<int> { co_yield 1; }));",
     ["source: the function returns a generator: give it what that returns, f()"]),
    ("a resource of another type", "collect(map(numbers, with(db, [](int x, std::string&) { return x; })));", ["map: the stage does not take the items of this flow"]),
    ("a file of structs without fields", "write_csv(map(numbers, [](int x) { return point{x, x}; }), \"points.csv\");", ["write_csv: an item is no text or number"]),
]

PROGRAM = """#include "troupe/runtime/flow/file_stages.hpp"
#include "troupe/runtime/flow/resource.hpp"
#include <cstdio>
using namespace troupe;
struct point { int x, y; };
struct total {
  int sum = 0;
  void operator()(int x) { sum += x; }
  int finish() { return sum; }
};
void describe(flow_graph& t) {
  auto numbers = from(t, {1, 2, 3});
  resource<int> db(1, [](std::uint32_t) { return 1; });
#line 100
  STATEMENT
}
"""


def compilers():
    gcc = shutil.which("g++-12") or shutil.which("g++")
    version = limits.run([gcc, "-dumpversion"], text=True).stdout.strip().split(".")[0] if gcc else ""
    return ([gcc] if version == "12" else []) + [c for c in [shutil.which("clang++-19")] if c]


def said(compiler, statement, source, build):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "user.cpp"), "w", encoding="utf-8") as f:
            f.write(PROGRAM.replace("STATEMENT", statement))
        done = limits.run([compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-fno-diagnostics-color" if "clang" in compiler else "-fdiagnostics-color=never",
                           "-I", os.path.join(build, "include"), "-isystem", build, "-I", source, "user.cpp"], cwd=folder, text=True)
    return done.returncode, done.stderr.splitlines()


def check(compiler, mistake, source, build):
    what, statement, reasons = mistake
    code, lines = said(compiler, statement, source, build)
    problems = []
    if code == 0:
        problems.append("it compiles")
    if len(lines) > LINES_MAX:
        problems.append(f"{len(lines)} lines")
    if not any("user.cpp:100:" in line for line in lines[:FIRST]):
        problems.append(f"the user's line is not among the first {FIRST}")
    if not any(reason in line for line in lines for reason in reasons):
        problems.append("the reason is missing")
    if not problems:
        return []
    return [f"{os.path.basename(compiler)}, {what}: {'; '.join(problems)}", *("    " + line[:300] for line in lines[:40])]


def main(source, build):
    found = compilers()
    if not found:
        print("neither GCC 12 nor clang-19 is installed")
        return 77
    jobs = [(c, m) for c in found for m in MISTAKES]
    jobs.append((found[0], ("no mistake", "collect(numbers);", [])))
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        *answers, right = pool.map(lambda job: check(*job, source, build), jobs)
    problems = [line for answer in answers for line in answer]
    if not any("it compiles" in line for line in right):
        problems += ["what is right is refused:", *right]
    if len(found) == 1:
        print(f"only {os.path.basename(found[0])} is asked: GCC 12 and clang-19 are not both installed")
    print("\n".join(problems) or f"{len(jobs)} programs")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])))
