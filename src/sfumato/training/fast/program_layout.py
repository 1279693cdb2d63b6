# SPDX-License-Identifier: Apache-2.0
"""Let convolutions of a traced program read images with their channels last, as tensor cores want them.

A compiler does so by itself for a forward pass. Of a program that holds forward and backward it keeps the
layout that tensors had while it was traced, and copies images back and forth.

Guarantee  Values stay as they are: a tensor that a convolution reads is copied once, to another layout, and
           what read the tensor reads the copy. What reads memory by its strides goes on reading the tensor.
           What the program returns is laid out as before.
"""

from typing import Any, Final

import torch
from torch.fx import Graph, GraphModule, Node

__all__ = ["with_channels_last"]

_READ: Final[dict[str, tuple[int, ...]]] = {  # the places of images and kernels among the arguments
    "aten.convolution.default": (0, 1),
    "aten.convolution_backward.default": (0, 1, 2),
    "sfumato.correlation_norm.default": (0, 1),
}
_aten: Final[Any] = torch.ops.aten
_VIEWS: Final = (_aten.view.default, _aten._unsafe_view.default)  # in the layout that was traced


def with_channels_last(traced: GraphModule) -> bool:
    """Change the layout that two-dimensional convolutions of a program read; False if it has none."""
    graph = traced.graph
    read = {
        node.args[place]: None
        for node in graph.nodes
        for place in _READ.get(str(node.target), ())
        if _is_image(node.args[place])
    }
    fixed = _read_by_strides(graph)
    for node in read:
        with graph.inserting_after(node):
            copied = _copy(graph, node, torch.channels_last)
        for user in [user for user in node.users if user is not copied and user not in fixed]:
            user.replace_input_with(node, copied)
    if read:
        _shape_any_layout(graph)
        _return_as_before(graph)
        traced.recompile()
    return bool(read)


def _read_by_strides(graph: Graph) -> list[Node]:
    """Return what reads memory by the strides that were traced: `as_strided`, and the views that it is of."""
    found = list(graph.find_nodes(op="call_function", target=_aten.as_strided.default))
    for node in found:  # which grows
        before = node.args[0]
        if isinstance(before, Node) and _is_view(before) and before not in found:
            found.append(before)
    return found


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(out.alias_info is not None for out in schema.returns)


def _shape_any_layout(graph: Graph) -> None:
    """Let views copy what lies otherwise than it did."""
    for target in _VIEWS:
        for node in graph.find_nodes(op="call_function", target=target):
            node.target = _aten.reshape.default


def _return_as_before(graph: Graph) -> None:
    (output,) = graph.find_nodes(op="output")
    with graph.inserting_before(output):
        found = [
            _copy(graph, node, torch.contiguous_format) if _is_image(node) else node
            for node in output.args[0]
        ]
    output.args = (found,)


def _copy(graph: Graph, node: Node, layout: torch.memory_format) -> Node:
    return graph.call_function(_aten.clone.default, (node,), {"memory_format": layout})


def _is_image(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.dim() == 4
