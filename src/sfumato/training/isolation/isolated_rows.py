# SPDX-License-Identifier: Apache-2.0
"""Run a model on all rows of a batch at once, while it sees one row at a time.

Guarantee  Inside `Isolated` the model and the loss get tensors of one row, shape [1, ...]. The axis that
           counts the rows of the batch is hidden by torch's vmap: no operation can name, sort, index, add up
           or normalize along it. What the model computes for a row depends on that row, on parameters, on
           other tensors that all rows share, and on random draws; never on another row.
           No value of a row can leave: `item`, `bool`, `tolist`, `numpy` and `nonzero` raise, and a printed
           row shows its shape only. A function that fails on values (a matrix that is not positive, an index
           out of range) fails for all rows at once, so a model that catches such an error is refused.
           Functions whose vmap rule in torch 2.13 lets an index out of range reach another row are refused:
           `index_fill`, `ldl_solve`, `ctc_loss`, and `embedding` with a table of each row's own. A sweep over
           torch's own table of operators found these (tests/training/isolation/test_vmap_rules.py).
Edge cases One row is a batch like any other. No rows: there is nothing to isolate; do not enter.
           A single random number (`torch.rand([])`, which decides whether a layer is dropped) is drawn once
           for all rows. All other draws are independent for each row, as in an ordinary batch.
Failure    What cannot run in this way raises, mostly `RuntimeError`. The caller falls back to the reference,
           which runs rows one by one. Refused is what sees all rows, or knows the place of one: a vmap rule
           of the user's own, hooks on saved tensors, a generator of random numbers that is handed over (from
           a fixed seed, a row's draw would depend on how many rows come before it), and memory that is
           resized or handed on.
Source     torch.func.vmap. Some functions have a substitute (`vmap_substitutes`). The level is entered and
           left by hand, with private functions of torch, because `tape` computes on the whole batch in
           between: docs/decisions/0008.
Not here   A proof of torch's vmap rules, or of its loop over rows, which are trusted; a model that sets
           torch's seed within `fork_rng`, or to the seed that it has; errors that scripted code raises and
           the model catches; a tensor that the model keeps for the next pass (`integrity.release_barrier`
           looks for these); trainable parameters (`tape`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from threading import Lock
from typing import Any, Final, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import TransformType
from torch._functorch.autograd_function import custom_function_call
from torch._functorch.predispatch import lazy_load_decompositions
from torch.overrides import TorchFunctionMode

from sfumato.errors import UnsupportedUseError

__all__ = ["Discreet", "Isolated", "adapter", "cannot_run", "is_row"]

_functorch: Final[Any] = torch._C._functorch  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue] - see Source
_HOOKS: Final = "Hooks on saved tensors see all rows of a batch."
_lock: Final = Lock()
_isolations: Final[list[None]] = []  # those at work, on all threads
_discreet: Final[list[None]] = []  # modes at work, on all threads


def is_row(value: object) -> bool:
    """Whether a value is a tensor of isolated rows. None may be alive after the pass that made it."""
    return isinstance(value, Tensor) and bool(_functorch.is_batchedtensor(value))


def cannot_run(error: Exception) -> UnsupportedUseError:
    """Return the error for a model that failed while rows were isolated, without its message."""
    return UnsupportedUseError(
        "the model or the loss does something that cannot be done for all rows at once while each is kept "
        f"apart ({type(error).__name__}): it looks at values (item, nonzero, an index by a mask, packed "
        "sequences, numpy), computes gradients itself, is checkpointed, has a hook on a tensor, or changes a "
        "tensor in place that all rows share."
    )


class Isolated:
    """A context in which rows are isolated.

    With `own_tensors`, each row gets tensors of its own from `torch.zeros` and its kin, so that a model may
    write rows into them in place. They take memory, so it is not the default. With `generators`, functions
    may draw from a generator that they are handed; its seed must be another one in every pass.

    >>> with Isolated(3) as rows:
    ...     row = rows.split(torch.tensor([1.0, 2.0, 3.0]))
    ...     shape, total = row.shape, rows.join(row.sum())
    >>> shape, total
    (torch.Size([1]), tensor([1., 2., 3.]))
    """

    def __init__(self, count: int, *, own_tensors: bool = False, generators: bool = False) -> None:
        self.count = count
        self.own_tensors = own_tensors
        self._level = 0
        self._mode = _Adapters(self, generators=generators)

    def __enter__(self) -> "Isolated":
        _load()
        self._hooks = torch.autograd.graph.disable_saved_tensors_hooks(_HOOKS)
        self._depth = _functorch.get_dynamic_layer_stack_depth()
        self._hooks.__enter__()
        _isolations.append(None)
        try:
            _set_flags()
            self._level = _functorch._vmap_increment_nesting(self.count, "different")
            self._mode.__enter__()
        except BaseException:  # an interrupt, too, must leave nothing open
            self._leave()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._mode.__exit__(None, None, None)
        finally:
            self._leave()
        if not any(error):
            self._mode.refuse_routes()

    def _leave(self) -> None:
        try:
            while _functorch.get_dynamic_layer_stack_depth() > self._depth:
                _functorch._vmap_decrement_nesting()
        finally:
            _isolations.pop()
            _set_flags()
            self._hooks.__exit__(None, None, None)

    def split(self, x: Tensor) -> Tensor:
        """Return [rows, ...] as the tensor of one row, [1, ...]."""
        return self.block(x.unsqueeze(1))

    def block(self, x: Tensor) -> Tensor:
        """Return [rows, ...] as the tensor of one of them, [...]."""
        return _functorch._add_batch_dim(x, 0, self._level)

    def join(self, x: Tensor) -> Tensor:
        """Return the tensor of one row, [...], as [rows, ...]; a shared value is not copied."""
        return _functorch._remove_batch_dim(x, self._level, self.count, 0)

    @property
    def is_current(self) -> bool:
        """Whether the code that is running sees rows of this level, and of no other inside or around it."""
        return _functorch.maybe_current_level() == self._level

    def on_batch(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do trusted work outside of the isolation; each tensor it returns is [rows, ...].

        The arguments stay rows: the work calls `join` on them.
        """
        layer = _functorch.pop_dynamic_layer_stack()
        try:
            found = work(*args, **kwargs)
        finally:
            _functorch.push_dynamic_layer_stack(layer)
        return self._rows(found)

    def once(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do trusted work outside of the isolation whose result all rows share."""
        layer = _functorch.pop_dynamic_layer_stack()
        try:
            return work(*args, **kwargs)
        finally:
            _functorch.push_dynamic_layer_stack(layer)

    def _rows(self, found: Any) -> Any:
        if isinstance(found, Tensor):
            return _functorch._add_batch_dim(found, 0, self._level)
        if isinstance(found, tuple | list):
            return tuple(self._rows(part) for part in found)  # pyright: ignore[reportUnknownVariableType]
        return found

    def call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function of torch on rows: by its adapter, or as vmap does."""
        adapter = _ADAPTERS.get(function)
        if adapter is None:
            return _GUARDS.get(function, _called)(function, *args, **kwargs)
        return adapter(self, function, *args, **kwargs)


def adapter(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what to call instead of functions of torch while rows are isolated.

    It is called with the isolation, the function, and the arguments of the function.
    """

    def register(substitute: Callable[..., Any]) -> Callable[..., Any]:
        _ADAPTERS.update(dict.fromkeys(functions, substitute))
        _SPECIAL.update(functions)
        return substitute

    return register


@cache
def _load() -> None:
    """Load the decompositions that vmap needs, as torch.func.vmap does, and our adapters; once a process."""
    from sfumato.training.isolation import vmap_substitutes

    _ = vmap_substitutes
    lazy_load_decompositions()


def _set_flags() -> None:
    """Set two flags of torch for the length of all isolations of the process, on whatever threads.

    vmap warns where it loops over rows, which is no mistake of the user's. A model that asks whether it is
    being compiled skips shortcuts that look at values, such as "is the whole mask true?".
    """
    with _lock:
        _functorch._set_vmap_fallback_warning_enabled(not _isolations)
        torch.compiler._is_compiling_flag = bool(_isolations)  # pyright: ignore[reportPrivateUsage]


class Discreet(TorchFunctionMode):
    """Sees every call of a function of torch: what would show values, or all rows, is replaced or refused."""

    def __init__(self, *, generators: bool = False) -> None:
        super().__init__()
        self._generators = generators
        self._failed = False
        self._seed = 0

    def __enter__(self) -> Self:
        _watch_rules()
        self._seed = torch.initial_seed()
        with _lock:
            _discreet.append(None)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        with _lock:
            _discreet.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            if not kwargs and func not in _SPECIAL:
                return func(*args)
            return self._called(func, args, kwargs or {})
        except (TypeError, AttributeError):  # of types and shapes only; operators catch these themselves
            raise
        except Exception:
            self._failed = True
            raise

    def _called(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not self._generators and kwargs.get("generator") is not None:
            raise UnsupportedUseError(
                "the model draws from a generator of its own. From a fixed seed, what a row gets would "
                "depend on its place in the batch. Draw without `generator`, or use engine='functional'."
            )
        guard = _GUARDS.get(func)
        return func(*args, **kwargs) if guard is None else guard(func, *args, **kwargs)

    def refuse_routes(self) -> None:
        """Raise if a function failed, though the model went on, or if the model set the seed.

        Call it where a pass has come to its end.
        """
        if torch.initial_seed() != self._seed:
            torch.seed()  # another than the model's, so that it is seen again
            raise UnsupportedUseError(
                "the model or the loss sets the seed of torch's random numbers. From a fixed seed, what a "
                "row gets would depend on its place in the batch. Set seeds between steps only."
            )
        if self._failed:
            raise UnsupportedUseError(
                "the model or the loss catches an error of torch and goes on. Such an error comes for all "
                "rows at once, though one of them may have caused it. Use a function that does not raise "
                "(torch.linalg.cholesky_ex), or engine='functional'."
            )


class _Adapters(Discreet):
    """Sees every call of a function of torch while rows are isolated."""

    def __init__(self, rows: Isolated, *, generators: bool) -> None:
        super().__init__(generators=generators)
        self._rows = rows

    def _called(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        adapter = _ADAPTERS.get(func)
        if adapter is not None and self._rows.is_current and kwargs.get("generator") is None:
            return adapter(self._rows, func, *args, **kwargs)
        return super()._called(func, args, kwargs)


def _described(function: Any, x: Tensor, *args: Any, **kwargs: Any) -> str:
    """Print a row without its values."""
    hidden = _functorch.is_functorch_wrapped_tensor(x)
    return f"<a row of shape {list(x.shape)}>" if hidden else function(x, *args, **kwargs)


@cache
def _watch_rules() -> None:
    """Refuse functions that come with a rule for batches of their own, in forward and in backward passes.

    Backward passes do not see modes, so torch's table of such functions is where to look; once a process.
    """
    table: dict[Any, Callable[..., Any]] = custom_function_call.functorch_table  # pyright: ignore[reportAttributeAccessIssue]
    run = table[TransformType.Vmap]

    def watched(interpreter: Any, custom: Any, *args: Any, **kwargs: Any) -> Any:
        if _discreet and custom.vmap is not torch.autograd.Function.vmap:
            raise UnsupportedUseError(
                f"the function {custom.__name__!r} has a vmap rule of its own, which sees all rows of a "
                "batch and may mix them. Use generate_vmap_rule=True, or engine='functional'."
            )
        return run(interpreter, custom, *args, **kwargs)

    table[TransformType.Vmap] = watched


def _memory(function: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Refuse functions that show memory as it lies, which may be another row's."""
    raise UnsupportedUseError(
        f"{function.__name__!r} changes which memory a tensor has, and may show another row's. Make a new "
        "tensor, or use engine='functional'."
    )


def _sized_by_values(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuse functions whose number of results depends on values: vmap would run equal numbers only."""
    if not any(is_row(value) for value in (*args, *kwargs.values())):
        return function(*args, **kwargs)
    raise UnsupportedUseError(
        f"the size of what {function.__name__!r} returns depends on values, so rows cannot be run at once. "
        "Use a mask and torch.where, or engine='functional'."
    )


def _repeated(function: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuse repetitions that rows decide: `repeats` is the first argument after the tensor, or alone."""
    repeats = args[0] if args else kwargs.get("repeats", x)
    return (_sized_by_values if is_row(repeats) else _called)(function, x, *args, **kwargs)


def _called(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _reaches_rows(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuse functions whose vmap rule lets an index out of range reach the memory of another row."""
    if not any(_is_hidden(value) for value in (*args, *kwargs.values())):
        return function(*args, **kwargs)
    raise UnsupportedUseError(
        f"torch's vmap rule of {function.__name__!r} lets an index out of range reach another row. Use "
        "torch.where, or engine='functional'."
    )


def _embedding(function: Any, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Look up a table; refuse one of each row's own, where an index out of range reads another row's."""
    return (_reaches_rows if _is_hidden(weight) else _called)(function, input, weight, *args, **kwargs)


def _aten_embedding(function: Any, weight: Tensor, indices: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return (_reaches_rows if _is_hidden(weight) else _called)(function, weight, indices, *args, **kwargs)


def _is_hidden(value: object) -> bool:
    """Whether a value is a tensor of rows, also inside of what tracks its gradient."""
    while isinstance(value, Tensor) and _functorch.is_functorch_wrapped_tensor(value):
        if _functorch.is_batchedtensor(value):
            return True
        value = _functorch.get_unwrapped(value)
    return False


def _forms(*names: str) -> list[Any]:
    """Return operations of torch under all names by which `torch.ops` calls them."""
    packets = [getattr(torch.ops.aten, name) for name in names]
    return [*packets, *(getattr(p, overload) for p in packets for overload in p.overloads())]


_ADAPTERS: Final[dict[Any, Callable[..., Any]]] = {}
_SIZED_BY_VALUES: Final = (
    *(torch.argwhere, Tensor.argwhere, torch.nonzero, Tensor.nonzero),
    *(torch.masked_select, Tensor.masked_select, torch.unique, Tensor.unique),
    *(torch.unique_consecutive, Tensor.unique_consecutive, torch.bincount, Tensor.bincount),
)
_GUARDS: Final[dict[Any, Callable[..., Any]]] = {
    Tensor.__repr__: _described,
    Tensor.__format__: _described,
    **dict.fromkeys((Tensor.resize_, Tensor.resize_as_), _memory),
    **dict.fromkeys((Tensor.as_strided_, torch.as_strided_), _memory),
    **dict.fromkeys((Tensor.set_, *_forms("as_strided_", "resize_", "resize_as_", "set_")), _memory),
    **dict.fromkeys((torch.index_fill, Tensor.index_fill, Tensor.index_fill_), _reaches_rows),
    **dict.fromkeys(
        _forms("index_fill", "index_fill_", "linalg_ldl_solve", "ctc_loss", "_ctc_loss"), _reaches_rows
    ),
    **dict.fromkeys((torch.linalg.ldl_solve, F.ctc_loss, torch.ctc_loss), _reaches_rows),
    F.embedding: _embedding,
    **dict.fromkeys((torch.embedding, *_forms("embedding")), _aten_embedding),
    **dict.fromkeys(_SIZED_BY_VALUES, _sized_by_values),
    torch.repeat_interleave: _repeated,
    Tensor.repeat_interleave: _repeated,
    torch.quantize_per_tensor_dynamic: _sized_by_values,
}
_SPECIAL: Final[set[Any]] = set(_GUARDS)  # with `_ADAPTERS`: all that is not simply called
