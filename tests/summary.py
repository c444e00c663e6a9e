#!/usr/bin/env python3
"""Counts what ctest ran, per preset and label, from its JUnit files: summary.py PRESET=FILE...

Ends with 1 if a file is missing or names a test that failed or did not run; a skipped one says so itself and is counted.
"""

import re
import sys
import xml.etree.ElementTree as tree


def label_of(case):
    return case.get("name").split(".")[0]  # tests are named label.folder.suite


def main():
    rows, bad = [], []
    for argument in sys.argv[1:]:
        preset, _, path = argument.partition("=")
        try:
            cases = list(tree.parse(path).getroot().iter("testcase"))
        except (OSError, tree.ParseError) as e:
            bad.append(f"{preset}: {path} cannot be read: {e}")
            continue
        counts = {}
        for case in cases:
            output = "".join(o.text or "" for o in case.iter("system-out"))
            # A Boost.Test binary says how many cases it ran; anything else is one.
            ran = re.search(r"Running (\d+) test cases?", output)
            status = case.get("status")
            row = counts.setdefault(label_of(case), [0, 0, 0, 0, 0.0])
            row[0] += 1
            if status == "run":
                row[1] += int(ran.group(1)) if ran else 1
            elif status == "notrun" and case.find("skipped") is not None and "SKIP" in (case.find("skipped").get("message") or "").upper():
                row[2] += 1
            else:
                row[3] += 1
                bad.append(f"{preset}: {case.get('name')}: {status}")
            row[4] += float(case.get("time") or 0)
        rows += [(preset, label, *row) for label, row in sorted(counts.items())]
    print(f"{'preset':<9}{'label':<14}{'suites':>7}{'cases':>7}{'skipped':>9}{'failed':>8}{'seconds':>9}")
    for preset, label, suites, ran, skipped, failed, seconds in rows:
        print(f"{preset:<9}{label:<14}{suites:>7}{ran:>7}{skipped:>9}{failed:>8}{seconds:>9.1f}")
    for line in bad:
        print(line)
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
