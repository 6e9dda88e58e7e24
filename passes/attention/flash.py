"""FlashAttention of custom domains, read into the common form.

No standard says what these operators are; they follow the library flash-attn (Dao 2023, its function
flash_attn_func): causal and windowed masks stand at the lower right when there are more keys than queries, a query
that may see no key gets zeros, dropout does nothing at inference. Operators named after torch's
scaled_dot_product_attention have their causal mask at the upper left, as that function does. What a node does not
say is refused, with the option that says it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.attention import form as forms
from graphkit.passes.attention import mask
from graphkit.passes.attention.flash_inputs import Layout, read_layout, read_mask
from graphkit.passes.attention.form import Attention
from graphkit.passes.attention.options import Options
from graphkit.rewrite import Outcome, Refusal, Rule

_NAME = "flash-attention"
_FLASH = re.compile(r"(flash|fused)(attn|attention)v?\d*(func|forward|fwd|op)?")
_TORCH = re.compile(r"sdpa|scaleddotproduct(flash|efficient|fused)?attention")
_NOT_CUSTOM = frozenset({"", "com.microsoft"})

_SCALES = ("softmax_scale", "scale", "sm_scale", "scale_value")
_CAUSAL = ("causal", "is_causal", "unidirectional")
_SOFTCAP = ("softcap", "logits_soft_cap")
_LEFT, _RIGHT = ("window_size_left", "window_left"), ("window_size_right", "window_right")
_WINDOW = ("window_size", "window")
_READ_ELSEWHERE = (
    "layout", "input_layout", "qkv_format", "data_layout", "num_heads", "q_num_heads", "head_num", "num_kv_heads",
    "kv_num_heads", "num_key_value_heads", "num_heads_k",
)  # fmt: skip
_IGNORED = (
    "dropout", "dropout_p", "dropout_rate", "p_dropout", "seed", "is_training", "training", "deterministic",
    "return_softmax", "return_attn_probs", "return_lse", "num_splits", "head_dim", "head_size",
)  # fmt: skip
_KNOWN = frozenset([*_SCALES, *_CAUSAL, *_SOFTCAP, *_LEFT, *_RIGHT, *_WINDOW, *_READ_ELSEWHERE, *_IGNORED])


def rules(options: Options, graph: Graph) -> tuple[Rule, ...]:
    """The rule for the operators of this model that are attention by their name, or by the option `op`."""
    ops = {node.op for inner in graph.walk() for node in inner.nodes if is_flash(inner, node, options)}

    def match(graph: Graph, node: Node) -> Outcome:
        """MNN has no FlashAttention; it matches names and ignores domains."""
        if not is_flash(graph, node, options):
            return None
        found = _inspect(graph, node, options if options.op in ("", node.op) else Options(options.chunk))
        if isinstance(found, str):
            return Refusal(_NAME, node.label, found)
        return _rewrite(Emit(graph, node), node, *found, options.chunk)

    return (Rule(_NAME, tuple(sorted(ops)), match),) if ops else ()


def is_flash(graph: Graph, node: Node, options: Options) -> bool:
    """True for an attention operator of a custom domain that no function of the model says otherwise of."""
    if node.op == options.op and options.op:
        return True
    if node.domain in _NOT_CUSTOM or (node.domain, node.op_type, node.proto.overload) in graph.root.functions:
        return False
    name = node.op_type.replace("_", "").lower()
    return bool(_FLASH.fullmatch(name) or _TORCH.fullmatch(name))


def _inspect(graph: Graph, node: Node, options: Options) -> tuple[Attention, Layout] | str:
    """The form but for values that have to be made, and how the inputs lie; or what is in the way."""
    problem = _problem(graph, node)
    if problem:
        return problem
    layout = read_layout(graph, node, options.layout)
    if isinstance(layout, str):
        return layout
    scale = options.scale if options.scale is not None else _first(node, _SCALES, 0.0)
    if not scale and layout.size is None:
        return "the scale is 1/√(head size) and the head size is not known; say it: split-attention{scale=…}"
    window = _window(node)
    if isinstance(window, str):
        return window
    causal = bool(_first(node, _CAUSAL, 0)) if options.causal is None else options.causal
    torch = bool(_TORCH.fullmatch(node.op_type.replace("_", "").lower()))
    found = Attention(
        query=node.inputs[0],
        key=node.inputs[1],
        value=node.inputs[2],
        heads=layout.heads,
        kv_heads=layout.kv_heads,
        scale=float(scale) or (layout.size or 1) ** -0.5,
        sq=forms.known(layout.sq),
        sk=forms.known(layout.sk),
        causal=causal,
        align="top-left" if torch or layout.sq == layout.sk else "bottom-right",
        window=window,
        softcap=float(_first(node, _SOFTCAP, 0.0)),
        dtype=graph.dtype(node.inputs[0]) or 0,
    )
    dynamic = mask.is_positional(found) and not (found.sq and found.sk)
    if dynamic and graph.opset() < mask.NEEDS_RANGE:
        return f"positions of unknown number need Range of opset {mask.NEEDS_RANGE}"
    return found, layout


def _problem(graph: Graph, node: Node) -> str:
    """What about the node itself cannot be written."""
    if len(node.inputs) < 3 or not all(node.inputs[:3]):
        return "query, key and value must be three inputs"
    if any(node.inputs[4:]):
        return f"input {next(i for i, value in enumerate(node.inputs) if i > 3 and value)} is not known to attention"
    unknown = sorted(set(node.attrs) - _KNOWN)
    if unknown:
        return f"attribute '{unknown[0]}' is not known to attention"
    extra = [out for out in node.outputs[1:] if out and graph.is_used(out)]
    if extra:
        return f"output '{extra[0]}' (log-sum-exp or weights) is used; only the first output can be computed"
    kinds = [graph.dtype(value) for value in node.inputs[:3]]
    if kinds[0] not in mask.LOWEST or len(set(kinds)) != 1:
        return "query, key and value are not known to be of one floating-point type"
    return ""


def _first(node: Node, names: Iterable[str], default: float) -> float:
    """The first of these attributes that the node has."""
    return next((value for name in names if (value := node.attr(name)) is not None), default)


def _window(node: Node) -> tuple[int, int] | str:
    """Left and right reach of a window; a single number is both."""
    both = next((value for name in _WINDOW if (value := node.attr(name)) is not None), None)
    if both is None:
        reach = [_first(node, _LEFT, -1), _first(node, _RIGHT, -1)]
    else:
        reach = [both, both] if isinstance(both, int | float) else list(both)
    if len(reach) != 2 or any(not isinstance(side, int) for side in reach):
        return f"the window {both} is not a number, nor a left and a right one"
    left, right = (max(int(side), -1) for side in reach)
    return left, right


def _rewrite(build: Emit, node: Node, found: Attention, layout: Layout, chunk: int) -> Outcome:
    masked = read_mask(build, node, layout)
    if masked is not None and masked.problem:
        return Refusal(_NAME, node.label, masked.problem)
    query, key, value = (layout.heads_second(build, x, i) for i, x in enumerate(node.inputs[:3]))
    found = replace(found, query=query, key=key, value=value)
    if masked is not None:
        found = replace(found, bias=masked.bias, keep=masked.keep, bias_rows=masked.rows, keep_rows=masked.rows)
        alone = not mask.is_positional(found) and masked.bias and mask.never_hides(build.graph, node.inputs[3])
        found = replace(found, empty="computed") if alone else found
    written = forms.write(build, found, chunk)
    output = layout.as_given(build, written.output)
    return build.rewrite({node.outputs[0]: output}, forms.described(node.op_type, build))
