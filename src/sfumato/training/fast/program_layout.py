# SPDX-License-Identifier: Apache-2.0
"""Let convolutions of a traced program read images with their channels last, as tensor cores want them.

A compiler does so by itself for a forward pass. Of a program that holds forward and backward it keeps the
layout that tensors had while it was traced, and copies images back and forth.

Guarantee  Values stay as they are: a tensor that a convolution reads is copied once, to another layout, and
           what read the tensor reads the copy. What reads memory by its strides reads it as it was laid out.
           What the program returns is laid out as before.
Edge cases A program is left as it is if it writes to such a tensor later on and uses it by another view, too:
           a copy would keep what it was. So is one that reads by strides what lay in no common order.
"""

import operator
from typing import Any, Final

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

__all__ = ["with_channels_last"]

_READ: Final[dict[str, tuple[int, ...]]] = {  # the places of images and kernels among the arguments
    "aten.convolution.default": (0, 1),
    "aten.convolution_backward.default": (0, 1, 2),
    "sfumato.correlation_norm.default": (0, 1),
}
_aten: Final[Any] = torch.ops.aten
_VIEWS: Final = (_aten.view.default, _aten._unsafe_view.default)  # in the layout that was traced


def with_channels_last(traced: GraphModule) -> bool:
    """Change the layout that two-dimensional convolutions of a program read; False if nothing was changed."""
    graph = traced.graph
    read = {
        node.args[place]: None
        for node in graph.nodes
        for place in _READ.get(str(node.target), ())
        if _is_image(node.args[place])
    }
    fixed = _read_by_strides(graph)
    moved = _bases(fixed)
    if _would_part(graph, [*read, *_image_views(graph)], moved):
        return False
    if not all(node.meta["val"].is_contiguous() for node in moved):
        return False
    for node in moved if read else ():
        with graph.inserting_after(node):
            laid = _copy(graph, node, torch.contiguous_format)
        for user in [user for user in node.users if user in fixed]:
            user.replace_input_with(node, laid)
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


def _bases(fixed: list[Node]) -> list[Node]:
    """Return the results whose views are read by strides."""
    bases = {node.args[0]: None for node in fixed if node.args[0] not in fixed}
    return [node for node in bases if isinstance(node, Node) and node.op == "call_function"]


def _would_part(graph: Graph, copied: list[Node], twice: list[Node]) -> bool:
    """Whether a write would reach a tensor or its copy alone, and both are used; `twice`: both always are."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    last = {_roots(node)[-1]: place[writer] for writer in graph.nodes for node in _written(writer)}
    alike: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        alike.setdefault(_roots(node)[-1], []).append(node)

    def used_otherwise(node: Node) -> bool:
        others = [other for other in alike[_roots(node)[-1]] if node not in _roots(other)]
        return any(place[user] > place[node] for other in others for user in other.users)

    def written(node: Node) -> bool:
        return last.get(_roots(node)[-1], -1) > place[node]

    return any(map(written, twice)) or any(written(node) and used_otherwise(node) for node in copied)


def _written(node: Node) -> list[Node]:
    """Return the arguments that an operation changes in place."""
    schema = getattr(node.target, "_schema", None)
    found: list[Node] = []
    for number, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[number] if number < len(node.args) else node.kwargs.get(argument.name)
            map_arg(value, found.append)
    return found


def _roots(node: Node) -> list[Node]:
    """Return a tensor, what it is a view of, and so on: all of them share memory."""
    found = [node]
    while node.args and isinstance(node.args[0], Node):
        if not (node.target is operator.getitem or _is_view(node)):
            break
        node = node.args[0]
        found.append(node)
    return found


def _image_views(graph: Graph) -> list[Node]:
    """Return the views of images, which may be copies in another layout."""
    views = [node for target in _VIEWS for node in graph.find_nodes(op="call_function", target=target)]
    return [node for node in views if _is_image(_roots(node)[-1])]


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
