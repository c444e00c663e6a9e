"""Wraps Markdown and the comments of C++ at a width: what `text.py ROOT --fix` does before clang-format has its say.

Only what has a line beyond the width changes. Markdown keeps what it renders as: fences, indented code, tables, headings and lines
with a break at their end are left alone. Of comments, paragraphs are filled; labels of invariants, numbers and dashes keep their text
hanging; tables keep their columns, of which the widest are wrapped. A comment behind code that would leave no room stands above it.
"""

import re

TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\'', re.S)
HANGING = re.compile(r" ?(?:[A-Z]+-\d+(?:  +|(?<=\d\d) (?=[A-Z]))|(?:\d+\.|[-*]) +)(?=\S)")
HEAD = re.compile(r" ?[A-Z]\w+: ")  # Threading: ..., Errors: ...
BANNER = re.compile(r" ?(-{3}|={3})")
GAP = re.compile(r"\S {2,}(?=\S)")


def fill(words, first, rest, width, may_begin=lambda word: True):
    """Lines of at most `width`, where the words allow it. A word that may not begin a line stays with the one before it."""
    groups = []
    for word in words:
        if groups and not may_begin(word):
            groups[-1] += " " + word
        else:
            groups.append(word)
    lines, line = [], first
    for i, group in enumerate(groups):
        if i > 0 and len(line) + 1 + len(group) > width:
            lines.append(line)
            line = rest + group
        else:
            line += group if i == 0 else " " + group
    return lines + [line]


# --- Markdown

ITEM = re.compile(r"(\s*)([-*+]|\d+[.)])(\s+)(?=\S)")
MARKUP = re.compile(r"([-+*]|\d+[.)]|#{1,6}|[>|<].*|=+|-{2,}|`{3,}.*|~{3,}.*)$")
NO_TEXT = re.compile(r"\s*(#{1,6} |\||<|```|~~~|(-{3,}|\*{3,}|={3,})\s*$)")


def words_of(text):
    """Words between blanks; a short piece of code is one."""
    kept = re.sub(r"(`+)(.+?)\1(?!`)", lambda m: re.sub(r"\s+", "\0", m.group(0)) if len(m.group(0)) <= 42 else m.group(0), text)
    return [w.replace("\0", " ") for w in kept.split()]


def blocks_of_markdown(lines):
    """(first line, one behind the last, what it is: text that may be filled, fixed lines, or code and tables, which may be as wide as they are)."""
    i, in_list, after_blank = 0, False, True
    while i < len(lines):
        line, begin = lines[i], i
        fence = re.match(r"\s*(```+|~~~+)", line)
        if fence:
            i += 1
            while i < len(lines) and not lines[i].strip().startswith(fence.group(1)):
                i += 1
            i, after_blank = i + 1, False
            yield begin, min(i, len(lines)), "code"
            continue
        indent = len(line) - len(line.lstrip())
        is_code = after_blank and indent >= (6 if in_list else 4) and not ITEM.match(line)
        if not line.strip() or is_code or NO_TEXT.match(line):
            i += 1
            if line.strip() and not is_code:
                in_list, after_blank = in_list and indent > 0, False
            elif not line.strip():
                after_blank = True
            yield begin, i, "code" if is_code or line.lstrip().startswith("|") else "fixed"
            continue
        in_list = bool(ITEM.match(line)) or (in_list and indent > 0)
        is_quote = line.lstrip().startswith(">")
        i += 1
        while i < len(lines) and lines[i].strip() and not NO_TEXT.match(lines[i]) and not ITEM.match(lines[i]) and lines[i].lstrip().startswith(">") == is_quote:
            i += 1
        after_blank = False
        yield begin, i, "fixed" if any(x.endswith(("  ", "\\")) for x in lines[begin:i - 1]) else "text"


def markdown(text, width):
    lines, made = text.split("\n"), []
    for begin, end, kind in blocks_of_markdown(lines):
        block = lines[begin:end]
        if kind != "text" or all(len(x) <= width for x in block):
            made += block
            continue
        if block[0].lstrip().startswith(">"):
            first = rest = block[0][:block[0].index(">")] + "> "
            words = words_of(" ".join(x.lstrip()[1:] for x in block))
        else:
            item = ITEM.match(block[0])
            first = item.group(0) if item else re.match(r"\s*", block[0]).group(0)
            rest = " " * len(first)
            words = words_of(" ".join([block[0][len(first):]] + block[1:]))
        made += fill(words, first, rest, width, lambda w: not MARKUP.match(w))
    return "\n".join(made)


# --- comments of C++

def comment_starts(text):
    """Where the comment of each line begins, by line; none: there is none. Lines inside of texts and of clang-format off have none."""
    starts, is_off = {}, False
    for m in TOKEN.finditer(text):
        if not m.group(0).startswith("//"):
            continue
        if re.match(r"//\s*clang-format o(n|ff)", m.group(0)):
            is_off = m.group(0).rstrip().endswith("off")
        elif not is_off:
            starts[text.count("\n", 0, m.start())] = m.start() - (text.rfind("\n", 0, m.start()) + 1)
    return starts


def comments(text, width):
    lines = text.split("\n")
    starts = comment_starts(text)
    made, i = [], 0
    while i < len(lines):
        at = starts.get(i)
        if at is None:
            made.append(lines[i])
            i += 1
            continue
        end = i + 1
        if lines[i][:at].strip():  # behind code: with the lines below that go on with it
            while starts.get(end) == at and not lines[end][:at].strip() and at > len(lines[i]) - len(lines[i].lstrip()):
                end += 1
            made += trailing(lines, i, end, at, width)
        else:
            while starts.get(end) == at and not lines[end][:at].strip():
                end += 1
            block = [x[at + 2:].rstrip() for x in lines[i:end]]
            prefix = " " * at + "//"
            if any(len(x) > width for x in lines[i:end]) and not block[0].startswith(("/", "!", "<")):
                block = comment_block(block, width - len(prefix))
            made += [prefix + x for x in block]
        i = end
    return "\n".join(made)


def trailing(lines, begin, end, at, width):
    if all(len(x) <= width for x in lines[begin:end]):
        return lines[begin:end]
    code = lines[begin][:at].rstrip()
    text = " ".join(x[at + 2:].strip() for x in lines[begin:end])
    before = next((x for x in reversed([re.sub(r"//.*", "", y).rstrip() for y in lines[:begin]]) if x), ";")
    if text.startswith("NOLINT") or before[-1] not in ";{}:,(" or re.match(r"\s*([})\]#:?&|<.+=*/-]|else\b)", code):
        return lines[begin:end]
    first = text.split()[0]
    if re.fullmatch(r"[a-z][a-z'-]*[,:;]?", first) and not re.search(rf"\b{re.escape(first.rstrip(',:;'))}\b", code):
        text = text[0].upper() + text[1:]
    if text[-1] not in ".:;!?)":
        text += "."
    prefix = re.match(r"\s*", code).group(0) + "// "
    return fill(text.split(), prefix, prefix, width) + [code]


def indent_of(line):
    return len(line) - len(line.lstrip())


def comment_block(block, width):
    made, i = [], 0
    while i < len(block):
        line, begin = block[i], i
        i += 1
        if not line:
            made.append(line)
        elif BANNER.match(line):
            if i < len(block) and re.fullmatch(r" ?-{20,}", block[i]):
                line, i = line + " " + "-" * width, i + 1
            text = re.sub(r" [-=]{10,}$", "", line)
            made += [line[:width]] if text != line and len(text) < width - 10 else fill(text.split(), " ", " ", width)
        elif HANGING.match(line) and indent_of(line) <= 1:
            hang = HANGING.match(line).end()
            while i < len(block) and indent_of(block[i]) > 1:
                i += 1
            made += hanging(block[begin:i], hang, width)
        elif indent_of(line) > 1 or GAP.search(line.split(". ")[0]) and is_row(block, begin):
            while i < len(block) and block[i] and (indent_of(block[i]) > 1 or GAP.search(block[i]) and is_row(block, i)) and not HANGING.match(block[i][:12]):
                i += 1
            made += table(block[begin:i], width)
        else:
            while i < len(block) and block[i] and indent_of(block[i]) <= 1 and not HANGING.match(block[i]) and not BANNER.match(block[i]):
                if HEAD.match(block[i]) and block[i - 1].endswith("."):
                    break
                i += 1
            part = block[begin:i]
            if any(len(x) > width for x in part):
                part = fill(" ".join(part).split(), " ", " ", width, lambda w: not re.fullmatch(r"\d+\.|[-+*/=<>]|->|-{3,}|={3,}|[A-Z]+-\d\d+", w))
            made += part
    return made


def is_row(block, i):
    return bool(re.match(r" ?\S+( \S+)? {2,}\S", block[i]))


def hanging(part, hang, width):
    if all(len(x) <= width for x in part):
        return part
    if any(GAP.search(x) or indent_of(x) != hang for x in part[1:]):  # a table or a list inside: only lines of their own
        made = []
        for x in part:
            at = hang if x is part[0] else indent_of(x)
            made += fill(x[at:].split(), x[:at], " " * at, width) if len(x) > width else [x]
        return made
    words = " ".join([part[0][hang:]] + part[1:]).split()
    return fill(words, part[0][:hang], " " * hang, width)


def lies_over(line, at):
    return len(line) > at and line[at - 1] != " " and at > indent_of(line)


def join_row(cells, row):
    """What stands below one cell alone goes on with it; below several, and no first one, it is a row of its own."""
    if row[0] or not cells or len(row) > 2 and row[1] and any(row[2:]):
        cells.append(row)
    else:
        cells[-1] = [(a + " " + b).strip() for a, b in zip(cells[-1], row)]


def lines_of(cells, widths):
    return sum(max(len(fill(c.split(), "", "", w)) for c, w in zip(row, widths)) for row in cells)


def table(part, width):
    if all(len(x) <= width for x in part):
        return part
    if any(re.search(r"--+>|<--+|[│─└┌]|;( *//.*)?$", x) for x in part):
        return part
    base = min(indent_of(x) for x in part)
    rows = [x for x in part if indent_of(x) == base]
    split = [re.split(r" {2,}", x.strip()) for x in rows]
    if len(rows) > 1 and len(split[0]) > 1 and all(len(s) == len(split[0]) for s in split):
        # As many cells in each row: they are columns by their order, wherever they begin.
        begins_of = [[indent_of(x)] + [m.end() for m in GAP.finditer(x)] for x in rows]
        columns = [sorted(b)[len(rows) // 2] for b in zip(*begins_of)]
        cells = []
        for x in part:
            if indent_of(x) == base:
                cells.append(re.split(r" {2,}", x.strip()))
                continue
            row = [""] * len(columns)
            for at, text in zip([indent_of(x)] + [m.end() for m in GAP.finditer(x)], re.split(r" {2,}", x.strip())):
                row[max(k for k, c in enumerate(columns) if k == 0 or c <= at + 1)] += text
            join_row(cells, row)
    else:
        starts = {}
        for x in part:
            for at in [indent_of(x)] + [m.end() for m in GAP.finditer(x)]:
                starts[at] = starts.get(at, 0) + 1
        columns = [at for at in sorted(starts) if at == base or starts[at] >= 2 or len(rows) == 1]
        columns = [at for at in columns if not any(lies_over(x, at) for x in part)]
        cells = []
        for x in part:
            join_row(cells, [x[a:b].strip() for a, b in zip(columns, columns[1:] + [None])])
        if len(columns) > 1 and any(GAP.search(c) for row in cells for c in row):
            return part
    if len(columns) == 1:
        made = []
        for x in part:
            hang = max([m.end() for m in GAP.finditer(x) if m.end() < width - 40] + [indent_of(x)])
            made += fill(x[hang:].split(), x[:hang], " " * hang, width) if len(x) > width and not GAP.search(x[hang:]) else [x]
        return made
    # Where they are, if the last one has room there; else as narrow as they can be.
    if width - columns[-1] >= 40 and all(len(c) < b - a for row in cells for c, a, b in zip(row, columns, columns[1:])):
        begins = columns
        widths = [b - a - 1 for a, b in zip(columns, columns[1:])] + [width - columns[-1]]
    else:
        widths = [max(len(row[k]) for row in cells) for k in range(len(columns))]
        least = [max(len(word) for row in cells for word in row[k].split() or [""]) for k in range(len(columns))]
        while sum(widths) + 2 * (len(widths) - 1) + base > width:
            # Where it costs the fewest lines.
            taken = [widths[:k] + [widths[k] - 1] + widths[k + 1:] for k in range(len(widths)) if widths[k] > least[k]]
            if not taken:
                return part
            widths = min(taken, key=lambda w: (lines_of(cells, w), max(w)))
        begins = [base + sum(widths[:k]) + 2 * k for k in range(len(columns))]
    made = []
    for row in cells:
        wrapped = [fill(c.split(), "", "", w) if c else [] for c, w in zip(row, widths)]
        for k in range(max(len(w) for w in wrapped)):
            line = ""
            for at, w in zip(begins, wrapped):
                if k < len(w):
                    line = line.ljust(at) + w[k]
            made.append(line)
    return made
