"""Check a document before it is written: all that makes MNN crash, refuse the file or compute from wrong data.

MNN checks next to nothing when it loads a file: an index out of range, a missing table or a short buffer is a
segmentation fault or a wrong result. Each error here is one that was seen to do so (or read in MNN's source where it
could not be tried); what is only odd is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from graphkit.errors import ModelError
from graphkit.mnn.document._valid_arrays import (
    check_constant,
    check_counted,
    check_input,
    check_norm,
    check_pool,
    check_pool3d,
)
from graphkit.mnn.document._valid_convolution import check_convolution, check_convolution3d
from graphkit.mnn.document._valid_external import Outside, reads_outside
from graphkit.mnn.document._valid_fields import check_descriptions, check_enums, check_loops, check_unknown
from graphkit.mnn.document._valid_names import check_names
from graphkit.mnn.document._valid_operators import check_operators
from graphkit.mnn.document._valid_problem import Problem, Scope, kind_of
from graphkit.mnn.document._valid_subgraphs import bodies, check_control, check_subgraph_names
from graphkit.mnn.document._valid_wiring import check_wiring
from graphkit.mnn.document.files import Document
from graphkit.mnn.document.tree import Table

__all__ = ["Problem", "require_valid", "validate"]

_MOST = 1000
_SHOWN = 5  # problems in the message of an exception

_CHECKS: Mapping[str, Callable[[str, Table, Outside], Iterator[Problem]]] = {
    "Input": check_input,
    "Blob": check_constant,
    "LayerNorm": check_norm,
    "GroupNorm": check_norm,
    "Pool": check_pool,
    "Pool3D": check_pool3d,
    "Scale": check_counted,
    "PRelu": check_counted,
    "BatchNorm": check_counted,
    "InnerProduct": check_counted,
}


def validate(doc: Document) -> list[Problem]:
    """The problems of a document, errors first, each kind in the order of the file; at most 1000 of each.

    Looks at the file of weights (its size, and the first bytes of quantized weights), if the document names one.
    Raises nothing for what a document can hold.
    """
    errors: list[Problem] = []
    warnings: list[Problem] = []
    for problem in _problems(doc):
        kept = errors if problem.severity == "error" else warnings
        kept.extend((problem,) if len(kept) < _MOST else ())
        if len(errors) == _MOST:
            break
    return errors + warnings


def require_valid(doc: Document) -> None:
    """Raise ModelError that lists the first errors of a document; warnings are no reason."""
    errors = [problem for problem in validate(doc) if problem.severity == "error"]
    if not errors:
        return
    first = errors[0]
    shown = "".join(f"\n  {problem}" for problem in errors[1:_SHOWN])
    more = f"\n  and {len(errors) - _SHOWN} more" if len(errors) > _SHOWN else ""
    raise ModelError(f"{first.where}: {first.message}{shown}{more}", file=doc.source, hint=first.hint or None)


def _problems(doc: Document) -> Iterator[Problem]:
    known = bodies(doc)
    outside = Outside.of(doc.source, doc.weights)
    types: dict[str, tuple[str, ...]] = {}
    for number, view in enumerate(doc.graphs()):
        scope = Scope(view, number - 1)
        yield from check_names(scope)
        yield from check_wiring(scope)
        yield from check_operators(scope)
        yield from _arrays(scope, outside)
        yield from check_control(scope, known)
        yield from check_loops(scope)
        yield from check_descriptions(scope)
        yield from check_enums(scope, types)
    yield from check_subgraph_names(doc)
    yield from _weights_file(doc, outside)
    yield from check_unknown(doc)


def _arrays(scope: Scope, outside: Outside) -> Iterator[Problem]:
    for number, op in enumerate(scope.view.ops):
        main = op["main"]
        if not isinstance(main, Table):
            continue
        name = main.type.name
        inputs = len(op.ints("inputIndexes"))
        if name in _CHECKS:
            yield from _CHECKS[name](_main(scope, number), main, outside)
        elif name == "Convolution2D":
            yield from check_convolution(_main(scope, number), kind_of(op), inputs, main, outside)
        elif name == "Convolution3D":
            yield from check_convolution3d(_main(scope, number), inputs, main)


def _main(scope: Scope, number: int) -> str:
    return f"{scope.op(number)}.main"


def _weights_file(doc: Document, outside: Outside) -> Iterator[Problem]:
    if outside.path is not None:
        return
    for number, view in enumerate(doc.graphs()):
        for place, op in enumerate(view.ops):
            main = op["main"]
            if isinstance(main, Table) and "external" in main.fields and reads_outside(main):
                yield outside.missing(f"{Scope(view, number - 1).op(place)}.main.external")
                return
