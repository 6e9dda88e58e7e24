"""The pass `canonicalize`: one spelling for what can be said in many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphkit.graph import Graph
from graphkit.passes._canonical_attributes import ATTRIBUTE_RULES
from graphkit.passes._canonical_constants import unify_constants
from graphkit.passes._canonical_drift import attributes_of_the_opset
from graphkit.passes._canonical_sequences import SEQUENCE_RULES
from graphkit.passes._canonical_values import VALUE_RULES
from graphkit.passes._canonical_views import VIEW_RULES
from graphkit.passes._cleanup_noops import keeping_expand, same_cast, same_shape_result
from graphkit.rewrite import PassResult, apply_rules

_RULES = (
    attributes_of_the_opset,
    same_cast,
    same_shape_result,
    keeping_expand,
    *SEQUENCE_RULES,
    *VALUE_RULES,
    *VIEW_RULES,
    *ATTRIBUTE_RULES,
)


@dataclass(frozen=True)
class Canonicalize:
    """Bring operators into the one form that later passes look for and that MNN reads right.

    Rewrites CastLike to Cast (or nothing), Expand that changes nothing or is followed by a broadcast to the
    same shape, two Casts of which the first loses nothing, Not of Not and of integer comparisons, Where with
    a constant condition, Sum of two to Add, Constant nodes to initializers (in subgraphs: to tensors),
    sequences that are made and taken apart at once to Split and Concat, Reshape of a Reshape, Flatten,
    Squeeze or Unsqueeze, two Unsqueezes, and Concats along one axis to one node. Writes out kernel_shape,
    strides, dilations, pads and other attributes with defaults (MNN divides by zero on pools without
    strides), auto_pad as numbers, axes of Squeeze and Unsqueeze from the front, the last axis of
    LayerNormalization as -1 (one operator in MNN instead of 18), no allowzero where the shape has no zero.
    Attributes and inputs become those of the model's operator set, which itself stays.

    Refuses CastLike to an unknown type, Not of comparisons of floats (NaN), Where whose result may be larger
    than the chosen operand, sequences of unknown length or with other uses, and inputs that the operator set
    does not have and that are not constant. SAME padding of an unknown size with a stride, and of dilated
    windows, stays auto_pad.
    """

    name: ClassVar[str] = "canonicalize"
    summary: ClassVar[str] = "one spelling for casts, constants, attributes and sequences"

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        constants = tuple(unify_constants(graph))
        result = PassResult(constants, counters={"constant": len(constants)} if constants else {})
        return result + apply_rules(graph, _RULES)
