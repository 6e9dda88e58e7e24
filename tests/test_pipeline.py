"""Pipeline text: what it means, that it prints as it parses, and where errors point."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkit.errors import UsageError
from graphkit.pipeline import Entry, Fixpoint, Item, Pipeline, caret, parse

words = st.text(max_size=8) | st.sampled_from(["cse", "-cse", "fixpoint", "-", "--", 'a"b', "a\\b", "a b", "1MB"])
options = st.lists(st.tuples(words, words), max_size=3).map(tuple)
items: st.SearchStrategy[Entry] = st.builds(Item, words, options) | st.builds(
    Item, words, st.just(()), negated=st.just(True)
)
entries = st.recursive(
    items,
    lambda inner: st.builds(Fixpoint, st.lists(inner, max_size=3).map(tuple), options),
    max_leaves=6,
)
pipelines = st.lists(entries, max_size=4).map(lambda found: Pipeline(tuple(found)))


@settings(deadline=None, derandomize=True)
@given(pipelines)
def test_what_is_printed_parses_to_the_same(pipeline: Pipeline) -> None:
    again = parse(str(pipeline))
    assert again == pipeline
    assert str(again) == str(pipeline)


@settings(deadline=None, derandomize=True)
@given(st.text(alphabet='ab-,{}()="\\ \n\tfixpo', max_size=30))
def test_any_text_parses_or_is_a_usage_error(text: str) -> None:
    try:
        pipeline = parse(text)
    except UsageError:
        with pytest.raises(UsageError, match=r"\^"):
            parse(text)
    else:
        assert parse(str(pipeline)) == pipeline


def test_the_example_of_the_design() -> None:
    text = "fold-constants{max_bytes=1MB},fuse-gelu,fixpoint(cleanup,fold-constants),-fuse-layernorm"
    pipeline = parse(text)
    assert str(pipeline) == text
    assert pipeline.items == (
        Item("fold-constants", (("max_bytes", "1MB"),)),
        Item("fuse-gelu"),
        Fixpoint((Item("cleanup"), Item("fold-constants"))),
        Item("fuse-layernorm", negated=True),
    )
    assert [item.name for item in pipeline.names()] == [
        "fold-constants",
        "fuse-gelu",
        "cleanup",
        "fold-constants",
        "fuse-layernorm",
    ]


def test_spaces_do_not_matter_and_spans_do() -> None:
    text = ' a { k = "x y" , l=2 } , fixpoint ( b , c ) { max = 3 } '
    pipeline = parse(text)
    assert str(pipeline) == 'a{k="x y",l=2},fixpoint(b,c){max=3}'
    first, second = pipeline.items
    assert text[slice(*first.span)] == "a"
    assert isinstance(first, Item)
    assert [text[slice(*span)].strip() for span in first.option_spans] == ['k = "x y"', "l=2"]
    assert text[slice(*second.span)].startswith("fixpoint")


@pytest.mark.parametrize("text", ["", "  ", "a{}", "fixpoint()", '"quoted name"', '-"a b"', "-", "fixpoint"])
def test_odd_but_allowed(text: str) -> None:
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "problem", "column"),
    [
        ("a,,b", "expected a pass name", 2),
        ("a,", "expected a pass name", 2),
        ("a b", "expected ',' or the end", 2),
        ("a{", "expected an option name", 2),
        ("a{k", "expected '='", 3),
        ("a{k=", "expected a value", 4),
        ("a{k=v", "expected ','", 5),
        ("a{k=v,}", "expected an option name", 6),
        ('a{k="v}', "expected a value", 4),
        ("fixpoint(a", "expected ')'", 10),
        ("a)", "expected ',' or the end", 1),
        (")", "expected ',' or the end", 0),
        ("-a{k=v}", "has no options", 2),
        ("fixpoint(" * 60, "nested too deeply", 51 * 9),
    ],
)
def test_errors_point_at_the_place(text: str, problem: str, column: int) -> None:
    with pytest.raises(UsageError, match="cannot read the pipeline") as caught:
        parse(text)
    message, line, mark = str(caught.value).split("\n")
    assert problem in message
    assert line == "  " + text
    assert mark.index("^") - 2 == column


def test_carets_in_text_of_many_lines() -> None:
    text = "one,\n\ttwo,\nthree"
    assert caret(text, (6, 9)) == "\n   two,\n   ^~~"
    assert caret(text, (0, 99)) == "\n  one,\n  ^~~~"
    assert caret("", (0, 1)) == "\n  \n  ^"
