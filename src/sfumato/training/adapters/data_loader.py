# SPDX-License-Identifier: Apache-2.0
"""A torch DataLoader whose batches are Poisson samples.

Guarantee  Each step's sample holds each unit with the stated sampling rate, independently of all else, and
           is handed over in `batches_per_step` batches that have no unit in common. No row is read before the
           first loop begins, which is when a run that is paid for has begun.
Edge cases A batch may be empty: it then has the structure of any other, with no rows.
           Data set, `collate_fn` and workers are those of the loader that is replaced.
Failure    A loader that decides by itself which rows come together, or leaves rows out, is refused: its
           batches are not the ones that are accounted for.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, NoReturn, Protocol

import numpy as np
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from sfumato.errors import InvalidParameterError
from sfumato.training.data import tree
from sfumato.training.privacy.sampling import Sampler

__all__ = ["BatchWatcher", "PoissonBatches", "PoissonLoader", "refuse_other_batches"]

_END: Final = object()  # in the place of a batch after the last one


class BatchWatcher(Protocol):
    """Who must know which batch the loop has at hand."""

    def begin(self) -> int:
        """Begin a loop over the loader; return its number."""
        ...

    def drawing(self) -> AbstractContextManager[None]:
        """Return a context for reading rows: draws leave no trace in global generators."""
        ...

    def hand_over(self, loop: int, place: int, batch: Any) -> None:
        """Take up a batch, the `place`-th of its sample."""
        ...

    def end(self, loop: int) -> None:
        """End a loop over the loader."""
        ...


def refuse_other_batches(loader: DataLoader[Any]) -> None:
    """Raise unless the loader's batches are plain cuts of its data set, which Poisson samples may replace."""
    for wrong, reason in _REFUSALS:
        if wrong(loader):
            raise InvalidParameterError(reason)


def _is_plain(loader: DataLoader[Any]) -> bool:
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is SequentialSampler


_REFUSALS: tuple[tuple[Callable[[DataLoader[Any]], bool], str], ...] = (
    (
        lambda loader: isinstance(loader, PoissonLoader),
        "this data_loader is already private. Pass the original one.",
    ),
    (
        lambda loader: type(loader) is not DataLoader,
        "data_loader must be a torch.utils.data.DataLoader itself: a class of its own may form batches in "
        "ways that the guarantee does not know. Make a DataLoader of its data set.",
    ),
    (
        lambda loader: isinstance(loader.dataset, IterableDataset),
        "an IterableDataset decides itself which rows come next, so they cannot be Poisson-sampled. Give a "
        "data set with __getitem__ and __len__.",
    ),
    (
        lambda loader: loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler,
        "data_loader has a batch_sampler of its own, or no batches at all. The guarantee holds for Poisson "
        "samples: build the loader with batch_size alone, which becomes the expected batch size.",
    ),
    (
        lambda loader: not _is_plain(loader),
        "data_loader has a sampler of its own (weighted, distributed, a subset, with replacement). The "
        "guarantee holds for Poisson samples of the whole data set: build the loader without sampler, and "
        "leave rows out of the data set instead.",
    ),
    (
        lambda loader: loader.drop_last,
        "data_loader has drop_last=True, but the private loader has no short last batch to drop: every "
        "batch is a Poisson sample of any size. Build the loader with drop_last=False.",
    ),
)


class PoissonBatches:
    """The row numbers of each batch: as a `batch_sampler`, one sample of the data set for each step."""

    def __init__(self, sampler: Sampler, *, steps_per_epoch: int, batches_per_step: int) -> None:
        self._sampler = sampler
        self._steps_per_epoch = steps_per_epoch
        self._batches_per_step = batches_per_step
        self._step = 0  # never goes back: no sample is drawn twice

    def __len__(self) -> int:
        return self._steps_per_epoch * self._batches_per_step

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self._steps_per_epoch):
            taken = self._sampler.batch(self._step).numpy()
            self._step += 1
            for part in np.array_split(taken, self._batches_per_step):
                yield part.tolist()


class PoissonLoader(DataLoader[Any]):
    """A loader like the original one, with other batches; it reports each batch to a watcher."""

    def __init__(
        self,
        loader: DataLoader[Any],
        batches: PoissonBatches,
        *,
        batches_per_step: int,
        watcher: BatchWatcher,
    ) -> None:
        workers = loader.num_workers > 0
        collate = _Collate(loader)
        super().__init__(
            loader.dataset,
            batch_sampler=batches,  # type: ignore[arg-type]  # it needs lists of numbers only
            collate_fn=collate,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor if workers else None,
            persistent_workers=loader.persistent_workers,
        )
        self._batches_per_step = batches_per_step
        self._watcher = watcher
        self._blank = collate

    def __reduce__(self) -> NoReturn:
        raise InvalidParameterError(
            "a private data_loader cannot be copied or saved: a copy would draw samples that are not "
            "counted. Call make_private for each loop."
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # any iterator serves a loop
        loop = self._watcher.begin()
        with self._watcher.drawing():
            self._blank.prepare(self.dataset)
            batches = super().__iter__()
        for number in itertools.count():
            with self._watcher.drawing():
                batch = next(batches, _END)
            if batch is _END:
                break
            self._watcher.hand_over(loop, number % self._batches_per_step, batch)
            yield batch
        self._watcher.end(loop)


class _Collate:
    """The user's `collate_fn`, for batches that may be empty."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._collate = loader.collate_fn
        self._empty: Any = None

    def prepare(self, dataset: Any) -> None:
        """Find out what a batch looks like, for those without rows."""
        if self._empty is not None:
            return
        if not len(dataset):
            raise InvalidParameterError(
                "the data set has no rows, so it is not known what a batch looks like."
            )
        self._empty = _emptied(self._checked([dataset[0]]))

    def __call__(self, examples: list[Any]) -> Any:
        return self._checked(examples) if examples else self._empty

    def _checked(self, examples: list[Any]) -> Any:
        batch = self._collate(examples)
        sizes = {t.shape[0] if t.dim() else None for t in tree.tensors(batch)}
        if sizes != {len(examples)}:
            raise InvalidParameterError(
                "collate_fn must return tensors with one row for each example on their first axis: a "
                "clipped gradient is one row's. Pad instead of concatenating, and keep other tensors out of "
                "the batch."
            )
        return batch


def _emptied(batch: Any) -> Any:
    """Return a batch of the same structure without rows."""
    if isinstance(batch, Tensor):
        return batch[:0].clone()  # a view would keep its row
    inner = tree.parts(batch)
    if inner is None:
        return batch
    if isinstance(batch, list | tuple) and not any(True for _ in tree.tensors(batch)):
        return type(batch)()  # a list with one entry, such as a text, for each row
    return tree.rebuilt(batch, [_emptied(part) for part in inner])
