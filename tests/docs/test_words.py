"""The documentation is easy to read: short sentences, that begin with what they are about."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for page in (ROOT / "docs").rglob("*.md") if "reference" not in page.parts),
]
FRONTED = re.compile(r"(Of|Whoever|Who|What|Whether|How|Which|Where|Under|By)\b(?!.*\?$)")
"""How a sentence begins whose subject comes late; a question may."""


def sentences(text):
    """Yield the sentences of a page: no code, tables, headings, pictures or comments."""
    text = re.sub(r"(?s)```.*?```|<!--.*?-->", " ", text)
    text = re.sub(r"(?m)^\s*(\||#|!\[).*$", "", text)
    text = re.sub(r"(?m)^\s*([-*]|\d+\.)\s+", "\n\n", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"[*_]", "", re.sub(r"`[^`]*`", "CODE", text))
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z(\"'])", " ".join(paragraph.split())):
            if len(sentence.split()) > 2:
                yield sentence


def test_sentences_are_short_and_begin_with_their_subject():
    every = [s for page in PAGES for s in sentences(page.read_text(encoding="utf-8"))]
    words = [len(sentence.split()) for sentence in every]
    assert sum(words) / len(words) <= 15
    assert sum(count > 30 for count in words) / len(words) <= 0.04
    fronted = [sentence for sentence in every if FRONTED.match(sentence)]
    assert len(fronted) / len(every) <= 0.01, fronted


def test_no_line_of_text_is_longer_than_120_characters():
    for page in PAGES:
        text = re.sub(r"(?s)```.*?```", "", page.read_text(encoding="utf-8"))
        lines = [
            line for line in text.splitlines() if not line.startswith(("|", "!", "<!--", "[!"))
        ]
        assert not [line for line in lines if len(line) > 120], page
