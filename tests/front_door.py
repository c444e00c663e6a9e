#!/usr/bin/env python3
"""What is installed is what programs reach from the front door, and nothing else.

    front_door.py SOURCE           compares actors/api/headers.txt with what <troupe/...> reach, and docs/api.md with what their heads say;
                                   exits 1 if something differs
    front_door.py SOURCE --fix     writes both anew: a header more is a decision, to be seen in the change
    front_door.py --cut HEADER     prints the C++ of the example in a header's comment
"""

import os
import re
import sys

API = "actors/api"
LIST = f"{API}/headers.txt"
REFERENCE = "docs/api.md"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"troupe/([^"]+)"|<(troupe/[\w.]+)>)', re.M)


def reached(source):
    found, open_ones = set(), [f"{API}/troupe/{n}" for n in sorted(os.listdir(os.path.join(source, API, "troupe")))]
    while open_ones:
        name = open_ones.pop()
        if name in found:
            continue
        found.add(name)
        with open(os.path.join(source, name), encoding="utf-8") as f:
            open_ones += [inside or f"{API}/{door}" for inside, door in INCLUDE.findall(f.read())]
    return sorted(found)


def example(header):
    """The lines of its first comment that stand three columns further in."""
    lines = []
    with open(header, encoding="utf-8") as f:
        for line in f:
            if line.startswith("#pragma once"):
                continue
            if not line.startswith("//"):
                break
            if line.startswith("//   ") or (lines and line.strip() == "//"):
                lines.append(line[5:].rstrip())
    return "\n".join(lines).rstrip() + "\n"


def head(source, name):
    """Its first comment, and its example apart."""
    text, code = [], []
    with open(os.path.join(source, name), encoding="utf-8") as f:
        for line in f:
            if line.startswith("#pragma once"):
                continue
            if not line.startswith("//"):
                break
            line = line[2:].rstrip()
            text.append(line[1:] if line.startswith(" ") else line)
    if name.startswith(API):
        at = next((i for i, line in enumerate(text) if line.startswith("  ")), len(text))
        text, code = text[:at], [line[2:] for line in text[at:]]
    return "\n".join(text).strip(), "\n".join(code).strip()


def reference(source):
    out = ["# The headers of Troupe", "",
           "Made from the heads of the headers by `tests/front_door.py . --fix`. Each section is a header that a",
           "program includes, with an example that the tests run; below it stand the headers whose declarations",
           "it brings. What those include besides is Troupe's own."]
    for name in sorted(os.listdir(os.path.join(source, API, "troupe")), key=lambda n: (n != "troupe.hpp", n)):
        text, code = head(source, f"{API}/troupe/{name}")
        out += ["", f"## `<troupe/{name}>`", "", text, "", "```cpp", code, "```"]
        with open(os.path.join(source, API, "troupe", name), encoding="utf-8") as f:
            brought = INCLUDE.findall(f.read())
        doors = [door for _, door in brought if door]
        if doors:
            out += ["", "With " + ", ".join(f"`<{d}>`" for d in doors) + "."]
        for inside, _ in brought:
            if inside:
                out += ["", f"### [{inside}](../{inside})", "", "```text", head(source, inside)[0], "```"]
    return "\n".join(out) + "\n"


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--cut":
        sys.stdout.write(example(sys.argv[2]))
        return 0
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--fix"]):
        print("usage: front_door.py SOURCE [--fix] | --cut HEADER", file=sys.stderr)
        return 2
    source = sys.argv[1]
    now = reached(source)
    path = os.path.join(source, LIST)
    if sys.argv[2:]:
        with open(path, "w", encoding="utf-8") as f:
            f.write("".join(f"{n}\n" for n in now))
        os.makedirs(os.path.dirname(os.path.join(source, REFERENCE)), exist_ok=True)
        with open(os.path.join(source, REFERENCE), "w", encoding="utf-8") as f:
            f.write(reference(source))
        print(f"{len(now)} headers")
        return 0
    with open(path, encoding="utf-8") as f:
        listed = f.read().split()
    for name in sorted(set(now) - set(listed)):
        print(f"{name}: programs reach it from the front door, and {LIST} does not have it (tests/front_door.py . --fix, if it is meant)")
    for name in sorted(set(listed) - set(now)):
        print(f"{name}: {LIST} has it, and no program reaches it")
    without = [n for n in now if n.startswith(f"{API}/troupe/") and not example(os.path.join(source, n)).strip()]
    for name in without:
        print(f"{name}: has no example")
    try:
        with open(os.path.join(source, REFERENCE), encoding="utf-8") as f:
            is_current = f.read() == reference(source)
    except OSError:
        is_current = False
    if not is_current:
        print(f"{REFERENCE}: differs from the heads of the headers (tests/front_door.py . --fix)")
    return 1 if set(now) != set(listed) or without or not is_current else 0


if __name__ == "__main__":
    sys.exit(main())
