"""Changing which value is read where, and what values are called, across nested graphs."""

from __future__ import annotations

from onnx import NodeProto

from graphkit._index import Index
from graphkit.errors import GraphkitError
from graphkit.node import renamed_info, with_outputs
from graphkit.weights import renamed_weight


class RenamingIndex(Index):
    """An index whose values can be replaced and renamed; names stay unique over all nested graphs."""

    def new_name(self, hint: str) -> str:
        """A value name not used anywhere in the model."""
        raise AssertionError("Graph implements this")

    def replace_all_uses(self, old: str, new: str) -> None:
        """Let every node here and in nested graphs read `new` instead of `old`; outputs stay as they are."""
        if old == new:
            return
        for node in self.consumers(old):
            if old in node.inputs:
                self.set_inputs(node, [new if value == old else value for value in node.inputs])
            for sub in node.subgraphs.values():
                if sub.is_used(old) and not sub.defines(old):
                    sub._replace_captured(old, new)

    def _replace_captured(self, old: str, new: str) -> None:
        if self.defines(new):  # a value of our own would hide the one that is meant
            self.rename(new, self.new_name(new))
        self.replace_all_uses(old, new)
        if old not in self.output_infos:
            return
        if new in self.output_infos:  # a graph lists each output once
            fresh = self.new_name(new)
            self.insert(NodeProto(op_type="Identity", input=[new], output=[fresh], name=fresh))
            new = fresh
        self._pass_on(old, -1)
        self._rename_output(old, new)
        if not self.defines(new):
            self._pass_on(new, 1)

    def _rename_output(self, old: str, new: str) -> None:
        infos = self.output_infos
        if old in infos:
            self.output_infos = {(new if k == old else k): renamed_info(v, old, new) for k, v in infos.items()}

    def rename(self, old: str, new: str) -> None:
        """Give a value of this graph another name everywhere.

        Raises GraphkitError when `new` is taken, and when `old` is not defined here, or is an input or output
        of the model.
        """
        self._check_rename(old, new)
        self.replace_all_uses(old, new)
        producer = self._producer.pop(old, None)
        if producer is not None:
            outputs = [new if out == old else out for out in producer.outputs]
            producer.proto, producer.outputs = with_outputs(producer.proto, outputs), tuple(outputs)
            self._producer[new] = producer
        if old in self.initializers:
            self.initializers[new] = renamed_weight(self.initializers.pop(old), new)
        if old in self.input_infos:
            infos = self.input_infos
            self.input_infos = {(new if k == old else k): renamed_info(v, old, new) for k, v in infos.items()}
        if old in self.inferred:
            self.inferred[new] = self.inferred.pop(old)
        if old in self.declared:
            self.declared[new] = renamed_info(self.declared.pop(old), old, new)
        self._types.pop(old, None)
        self._hide(new)
        self._rename_output(old, new)

    def _check_rename(self, old: str, new: str) -> None:
        problem = None
        if self.sees(new):
            problem = "that name is taken"
        elif not self.defines(old):
            problem = "nothing in this graph defines it"
        elif self.parent is None and (old in self.input_infos or old in self.output_infos):
            problem = "it is an input or output of the model"
        elif old in self.output_infos and new in self.output_infos:
            problem = "both are outputs of the graph"
        if problem:
            raise GraphkitError(f"cannot rename '{old}' to '{new}': {problem}")
