"""Pipeline text: `fold-constants{max_bytes=1MB},fixpoint(cleanup,cse),-fuse-layernorm`.

    pipeline := item ("," item)*
    item     := "-" name | name [options] | "fixpoint" "(" pipeline ")" [options]
    options  := "{" key "=" value ("," key "=" value)* "}"
    key, value := a bare word | "quoted, with \\" and \\\\ inside"

A name is a pass or a preset; `-name` takes that pass out of what stands before it. Parsing and printing
round-trip: `parse(str(p)) == p`. The form is that of MLIR's textual pass pipelines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from graphkit.errors import UsageError

MAX_DEPTH = 50  # fixpoints inside one another
_BARE = re.compile(r"[^\s,{}()=\"]+")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_NEGATION = re.compile(r"-(?=[^\s,{}()=])")
Span = tuple[int, int]
Option = tuple[str, str]


@dataclass(frozen=True)
class Item:
    """One entry: a pass or preset with options, or with `negated` one to take out. `span` is its place."""

    name: str
    options: tuple[Option, ...] = ()
    negated: bool = False
    span: Span = field(default=(0, 0), compare=False)
    option_spans: tuple[Span, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return ("-" if self.negated else "") + _print_name(self.name) + _print_options(self.options)


@dataclass(frozen=True)
class Fixpoint:
    """Entries repeated together until none of them changes anything; option `max` bounds the rounds."""

    items: tuple[Entry, ...]
    options: tuple[Option, ...] = ()
    span: Span = field(default=(0, 0), compare=False)

    def __str__(self) -> str:
        return f"fixpoint({','.join(map(str, self.items))})" + _print_options(self.options)


Entry = Item | Fixpoint


@dataclass(frozen=True)
class Pipeline:
    """A parsed pipeline; `str()` gives its canonical text, `text` what was written (for carets in errors)."""

    items: tuple[Entry, ...]
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return ",".join(map(str, self.items))

    def names(self) -> Iterator[Item]:
        """All entries that are not fixpoints, in order."""
        yield from _names(self.items)


def _names(items: tuple[Entry, ...]) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Fixpoint):
            yield from _names(item.items)
        else:
            yield item


def _print_name(name: str) -> str:
    return _quote(name) if name.startswith("-") else _print_word(name)


def _print_options(options: tuple[Option, ...]) -> str:
    if not options:
        return ""
    return "{" + ",".join(f"{_print_word(key)}={_print_word(value)}" for key, value in options) + "}"


def _print_word(word: str) -> str:
    if _BARE.fullmatch(word):
        return word
    return _quote(word)


def _quote(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def caret(text: str, span: Span) -> str:
    """Two lines that show a place in the pipeline text."""
    start, end = span
    before, after = text.rfind("\n", 0, start) + 1, text.find("\n", start)
    line = text[before : after if after >= 0 else len(text)].replace("\t", " ")
    width = min(end, before + len(line)) - start
    return f"\n  {line}\n  {' ' * (start - before)}^{'~' * (width - 1)}"


def parse(text: str) -> Pipeline:
    """Parse pipeline text. Raises UsageError with a caret under the place that cannot be read."""
    parser = _Parser(text)
    items = parser.pipeline()
    if parser.pos < len(text):
        parser.fail("expected ',' or the end")
    return Pipeline(items, text)


class _Parser:
    """Recursive descent over the text; `pos` is where it stands."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.depth = 0

    def fail(self, problem: str) -> None:
        raise UsageError(f"cannot read the pipeline: {problem}" + caret(self.text, (self.pos, self.pos + 1)))

    def skip_space(self) -> None:
        while self.pos < len(self.text) and self.text[self.pos].isspace():
            self.pos += 1

    def peek(self) -> str:
        self.skip_space()
        return self.text[self.pos : self.pos + 1]

    def take(self, char: str) -> bool:
        if self.peek() != char:
            return False
        self.pos += 1
        self.skip_space()
        return True

    def expect(self, char: str) -> None:
        if not self.take(char):
            self.fail(f"expected '{char}'")

    def word(self, what: str) -> str:
        self.skip_space()
        quoted = _QUOTED.match(self.text, self.pos)
        if quoted:
            self.pos = quoted.end()
            return re.sub(r"\\(.)", r"\1", quoted.group()[1:-1], flags=re.DOTALL)
        bare = _BARE.match(self.text, self.pos)
        if bare is None:
            self.fail(f"expected {what}")
            return ""
        self.pos = bare.end()
        return bare.group()

    def pipeline(self) -> tuple[Entry, ...]:
        items: list[Entry] = []
        if self.peek() in ("", ")"):
            return ()
        items.append(self.item())
        while self.take(","):
            items.append(self.item())
        return tuple(items)

    def item(self) -> Entry:
        self.skip_space()
        start = self.pos
        negated = _NEGATION.match(self.text, start) is not None
        if negated:
            self.pos += 1
        quoted = self.peek() == '"'
        name = self.word("a pass name")
        end = self.pos
        if name == "fixpoint" and not negated and not quoted and self.take("("):
            return self.fixpoint(start)
        options, spans = self.options()
        if negated and options:
            self.pos = end
            self.fail("a pass that is taken out has no options")
        return Item(name, options, negated, (start, end), spans)

    def fixpoint(self, start: int) -> Fixpoint:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail("fixpoints are nested too deeply")
        items = self.pipeline()
        self.expect(")")
        self.depth -= 1
        options, _ = self.options()
        return Fixpoint(items, options, (start, self.pos))

    def options(self) -> tuple[tuple[Option, ...], tuple[Span, ...]]:
        options: list[Option] = []
        spans: list[Span] = []
        if not self.take("{"):
            return (), ()
        while not self.take("}"):
            if options:
                self.expect(",")
            self.skip_space()
            start = self.pos
            key = self.word("an option name")
            self.expect("=")
            options.append((key, self.word("a value")))
            spans.append((start, self.pos))
        return tuple(options), tuple(spans)
