"""Copies docs/ for Sphinx: the index has a list of all pages, and what the pages link to outside of docs/ is linked at its place in the
repository.

    stage.py REPOSITORY DIRECTORY
"""

import pathlib
import re
import shutil
import sys

SOURCE = "https://github.com/kvasir-dev/kvasir/blob/main/"
LINK = re.compile(r"(\]\()(\.\./[^)\s]+)(\))")
INDEX_LINK = re.compile(r"(\]\()README\.md((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^ *```")


def outside(match, root):
    """The link to a file of the repository, which must be there."""
    path, _, anchor = match.group(2).removeprefix("../").partition("#")
    if not (root / path).exists():
        sys.exit(f"{match.group(2)} leads nowhere")
    return match.group(1) + SOURCE + path + ("#" + anchor if anchor else "") + match.group(3)


def staged(text, root):
    """The text of a page with its links changed, code left alone."""
    lines, code = [], False
    for line in text.splitlines(keepends=True):
        if FENCE.match(line):
            code = not code
        elif not code:
            line = LINK.sub(lambda m: outside(m, root), line)
            line = INDEX_LINK.sub(r"\1index.md\2", line)
        lines.append(line)
    return "".join(lines)


def order(index, pages):
    """All pages, in the order in which the index names them."""
    named = re.findall(r"\]\(([a-z-]+)\.md", index)
    first = list(dict.fromkeys(n for n in named if n in pages))
    return first + sorted(pages - set(first))


def main():
    root, to = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    texts = {p.stem: p.read_text() for p in (root / "docs").glob("*.md")}
    index = texts.pop("README")
    tree = "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(order(index, set(texts))) + "\n```\n"
    (to / "index.md").write_text(staged(index, root) + tree)
    for name, text in texts.items():
        (to / f"{name}.md").write_text(staged(text, root))
    shutil.copytree(root / "docs" / "images", to / "images")
    shutil.copy(root / "hack" / "docs" / "conf.py", to / "conf.py")


main()
