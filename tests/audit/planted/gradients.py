# SPDX-License-Identifier: Apache-2.0
"""Bugs of a private gradient step: replayed on neighbors, or told apart by what many steps release."""

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import price
from sfumato.audit.evidence.one_run import gaussian_scores
from sfumato.audit.mechanisms.mechanism_attack import audit_mechanism, audit_outputs
from sfumato.audit.mechanisms.sensitivity_check import check_sensitivity
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import tensors
from sfumato.mechanisms.random import Generator, words
from sfumato.testing import seeded
from sfumato.training import (
    AdaptiveClip,
    Clipping,
    DpSgd,
    NoisyStep,
    PoissonSampling,
    PrivateGradients,
    Trainer,
    distributed,
)
from sfumato.training.data.units import moved
from sfumato.training.engine.step.step_record import StepRecord
from sfumato.training.loop import TrainingLoop
from sfumato.training.privacy.clipping import ClippedSums, Clipper
from sfumato.training.privacy.noise import IndependentNoise

from .catalogue import CONFIDENCE, Planted, leaks

__all__ = ["BUGS"]

WIDTH = 16
NOISE = 2.0
LONG = 1000.0  # a gradient that is clipped
DELTA = 1e-3
Rows = list[list[float]]


def ahead(length: float) -> list[float]:
    """Return a gradient of this length, in one direction for all."""
    return [length / WIDTH**0.5] * WIDTH


def itself(model: nn.Module, rows: Tensor) -> Tensor:
    """Return a loss whose gradient at each row is that row."""
    return model(rows)[:, 0]


def blank() -> nn.Linear:
    model = nn.Linear(WIDTH, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def private_gradients(
    generator: Generator, *, clipping: Clipping | None = None, group_size: int = 1, noise: float = NOISE
) -> PrivateGradients:
    return PrivateGradients(
        blank(),
        itself,
        clipping=Clipping(clip_norm=1.0) if clipping is None else clipping,
        noise_multiplier=noise,
        expected_batch_size=2.0,
        group_size=group_size,
        generator=generator,
    )


def released(private: PrivateGradients, rows: Rows) -> np.ndarray:
    """Take a step on rows, and return the noisy sum."""
    private.backward(torch.tensor(rows, dtype=torch.float32).reshape(-1, WIDTH))
    (parameter,) = private.parameters.values()
    return parameter.grad.numpy().ravel().copy() * private.expected_batch_size


PAIRS: tuple[tuple[Rows, Rows], ...] = (
    ([], [ahead(LONG)]),
    ([ahead(0.5)], [ahead(0.5), ahead(0.75)]),
    ([ahead(LONG)] * 3, [*[ahead(LONG)] * 3, ahead(-5 * LONG)]),
    ([ahead(0.0)], [ahead(0.0), ahead(0.0)]),
    ([ahead(0.5)], [ahead(0.5), ahead(float("nan"))]),
    ([ahead(0.5)], [ahead(0.5), ahead(float("inf"))]),
)


def replayed(seed: int, *, group_size: int = 1) -> bool:
    """Take a step on neighbors with the same noise: does one row move what is released by too much?"""

    def release(rows: Rows, generator: Generator) -> np.ndarray:
        return released(private_gradients(generator, group_size=group_size), rows)

    stated = private_gradients(seeded(seed), group_size=group_size).step.sensitivity
    return any(
        leaks(lambda pair=pair: check_sensitivity(release, *pair, sensitivity=stated, generator=seeded(seed)))
        for pair in PAIRS
    )


def clip_the_sum(patch: pytest.MonkeyPatch) -> None:
    def weighed(self, run, squared_norms):
        sums = run.weighted_sums(self.groups, torch.ones_like(squared_norms), last=True)
        norm = torch.stack([total.norm() for total in sums.values()]).norm()
        scale = (self.thresholds[0] / norm).clamp(max=1.0)
        return ClippedSums({name: total * scale for name, total in sums.items()})

    patch.setattr(Clipper, "weighed", weighed)


def divide_by_the_batch(patch: pytest.MonkeyPatch) -> None:
    accumulate = PrivateGradients.accumulate

    def counted(self, *batch, rows_per_unit=1, row_weights=None):
        self._batch_size = max(1, len(batch[0]) // rows_per_unit)
        accumulate(self, *batch, rows_per_unit=rows_per_unit, row_weights=row_weights)

    def _noised(self, noise_multiplier):
        sums = self._sums.flat()
        self._noise.add_(sums, stddev=noise_multiplier * self.bound, step=self.steps)
        for total in sums:
            total.div_(self._batch_size)  # the mean over the batch, as optimizers are used to

    patch.setattr(PrivateGradients, "accumulate", counted)
    patch.setattr(PrivateGradients, "_noised", _noised)


def let_nan_through(patch: pytest.MonkeyPatch) -> None:
    def sums(self, run):
        return self.weighed(run, run.squared_norms(self.groups))

    patch.setattr(Clipper, "sums", sums)


def groups_at_sensitivity_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NoisyStep, "sensitivity", property(lambda self: 1.0))


# --- owners of several rows -------------------------------------------------------------------------------


def owners_replayed(seed: int) -> bool:
    """Train a step on neighbors that differ in one owner: do the weights move by too much?"""
    mechanism = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=1.0),
        noise=[(NOISE, 1)],
        relation=Relation.ADD_REMOVE,
    )

    def release(owners: Sequence[int], generator: Generator) -> np.ndarray:
        model = blank()
        Trainer(
            model,
            (torch.tensor([ahead(LONG) for _ in owners]),),
            mechanism=mechanism,
            loss=itself,
            owners=torch.tensor(owners),
            contribution_bound=4,
            public_size=3,
            delta=1e-5,
            # A rate of 3 undoes the division by the expected batch size.
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=3.0),
            progress=False,
            generator=generator,
        ).fit()
        return model.weight.detach().numpy().ravel().copy()

    return leaks(
        lambda: check_sensitivity(release, [5, 5, 5, 7], [7], sensitivity=1.0, generator=seeded(seed))
    )


def clip_rows_of_a_unit(patch: pytest.MonkeyPatch) -> None:
    def _accumulate(self, units):
        batch = self.units.take(units, self._generator.fork("rows", self.step))
        self.private.accumulate(*moved(batch.rows, self._device), row_weights=batch.row_weights)

    patch.setattr(TrainingLoop, "_accumulate", _accumulate)


# --- steps that are told apart ----------------------------------------------------------------------------


def claim(steps: Sequence[NoisyStep], rate: float, *, noise: float = NOISE) -> Guarantee:
    sampling = PoissonSampling(sampling_rate=rate)
    event = sampling.event([(step.event(noise), 1) for step in steps], relation=Relation.ADD_REMOVE)
    return price(event, delta=DELTA, relation=Relation.ADD_REMOVE).guarantee()


def told_apart(
    run: Callable[[Rows, Generator], object], promised: Guarantee, seed: int, *, trials: int
) -> bool:
    """Run on a data set of one row and on an empty one: can they be told apart better than claimed?"""
    return audit_mechanism(
        run, [ahead(LONG)], [], trials=trials, confidence=CONFIDENCE, claim=promised, generator=seeded(seed)
    ).refuted


def sampled(rows: Rows, rate: float, step: int, generator: Generator) -> Rows:
    taken = PoissonSampling(sampling_rate=rate).sampler(len(rows), generator).batch(step)
    return [rows[i] for i in taken.tolist()]


def sampled_step_told_apart(seed: int) -> bool:
    def run(rows: Rows, generator: Generator) -> object:
        return float(released(private_gradients(generator), sampled(rows, 0.5, 0, generator)).sum())

    return told_apart(run, claim([NoisyStep(clipping=Clipping(clip_norm=1.0))], 0.5), seed, trials=200)


def two_steps_told_apart(seed: int, *, resumed: bool = False) -> bool:
    """Subtract what two steps release: the same noise would be gone, and only who was sampled be left."""

    def run(rows: Rows, generator: Generator) -> object:
        private = private_gradients(generator)
        before = released(private, sampled(rows, 0.5, 0, generator))
        if resumed:
            saved = private.state_dict()
            private = private_gradients(generator)
            private.load_state_dict(saved)
        after = released(private, sampled(rows, 0.5, 1, generator))
        return float(np.abs(after - before).sum())

    step = NoisyStep(clipping=Clipping(clip_norm=1.0))
    return told_apart(run, claim([step, step], 0.5), seed, trials=400)


def threshold_told_apart(seed: int) -> bool:
    clipping = Clipping(clip_norm=1.0, adaptive=AdaptiveClip(count_noise_multiplier=2.0))

    def run(rows: Rows, generator: Generator) -> object:
        private = private_gradients(generator, clipping=clipping)
        released(private, rows)
        return private._clipper.thresholds[0]

    return told_apart(run, claim([NoisyStep(clipping=clipping)], 1.0), seed, trials=200)


def skip_empty_batches(patch: pytest.MonkeyPatch) -> None:
    finish = PrivateGradients.finish

    def skipping(self):
        if self._sums._filled:
            return finish(self)
        self._record.count(self.noise_multiplier)
        for parameter in self.parameters.values():
            parameter.grad = torch.zeros_like(parameter)  # there is nothing to learn from this batch

    patch.setattr(PrivateGradients, "finish", skipping)


def same_noise_each_step(patch: pytest.MonkeyPatch) -> None:
    def add_(self, sums, *, stddev, step):
        tensors.add_gaussian_many_(sums, stddev=stddev, generator=self.generator.fork("noise", 0))

    patch.setattr(IndependentNoise, "add_", add_)


def same_noise_after_resuming(patch: pytest.MonkeyPatch) -> None:
    load = PrivateGradients.load_state_dict

    def forgetting(self, state):
        load(self, state)
        self._record = StepRecord()  # "steps of this process"

    patch.setattr(PrivateGradients, "load_state_dict", forgetting)


def count_without_noise(patch: pytest.MonkeyPatch) -> None:
    adapt = Clipper.adapt

    def exactly(self, below, **settings):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(tensors, "add_gaussian_", lambda tensor, **noise: tensor)
            adapt(self, below, **settings)

    patch.setattr(Clipper, "adapt", exactly)


# --- several ranks ----------------------------------------------------------------------------------------


class Ranks:
    """Threads that take a step together, as processes under torchrun do.

    They compute one after the other, because torch's global random state, which the engine watches and puts
    back, belongs to all threads of a process.
    """

    def __init__(self, size: int) -> None:
        self._size, self._meet, self._own = size, threading.Barrier(size), threading.local()
        self._turn = threading.Lock()
        self._shares: list[list[Tensor]] = [[] for _ in range(size)]

    def run(self, work: Callable[[int], None]) -> None:
        failures: list[BaseException] = []

        def begin(rank: int) -> None:
            self._own.rank = rank
            try:
                with self._turn:
                    work(rank)
            except BaseException as error:
                failures.append(error)
                self._meet.abort()  # the others would wait for this one forever

        threads = [threading.Thread(target=begin, args=(rank,)) for rank in range(self._size)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(distributed, "rank", lambda: self._own.rank)
            patch.setattr(distributed, "size", lambda: self._size)
            patch.setattr(distributed, "add_up_", self._add_up_)
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if failures:
            raise failures[0]

    def _add_up_(self, shares: Sequence[Tensor]) -> None:
        self._shares[self._own.rank] = [share.clone() for share in shares]
        self._wait()
        for place, share in enumerate(shares):
            share.copy_(torch.stack([known[place] for known in self._shares]).sum(0))
        self._wait()

    def _wait(self) -> None:
        """Let the others compute until all of them are here."""
        self._turn.release()
        try:
            self._meet.wait()
        finally:
            self._turn.acquire()


def ranks_told_apart(seed: int, *, ranks: int = 4, canaries: int = 2000) -> bool:
    """Take one step on several ranks, with units that have a coordinate each: who was in?"""
    source = seeded(seed)
    present = torch.from_numpy((words(canaries, source.fork("present", 0)) >> 63).astype(bool))
    units = present.nonzero()[:, 0]
    sums: list[Tensor] = [torch.empty(0)] * ranks
    group = Ranks(ranks)

    def work(rank: int) -> None:
        model = nn.Embedding(canaries, 1)
        private = PrivateGradients(
            model,
            lambda model, unit: LONG * model(unit)[:, 0],
            clip_norm=1.0,
            noise_multiplier=NOISE,
            expected_batch_size=2.0,
            generator=source.fork("rank", rank),
        )
        private.backward(units[rank::ranks])
        sums[rank] = model.weight.grad[:, 0] * 2.0

    group.run(work)
    found = gaussian_scores(
        sums[0][present].numpy(), sums[0][~present].numpy(), delta=DELTA, confidence=CONFIDENCE
    )
    return found.epsilon > claim([NoisyStep(clipping=Clipping(clip_norm=1.0))], 1.0).epsilon


def noise_shared_among_ranks(patch: pytest.MonkeyPatch) -> None:
    def _noised(self, noise_multiplier):
        sums = self._sums.flat()
        stddev = self.noise_multiplier * self.bound / distributed.size()  # variances add up, not these
        self._noise.add_(sums, stddev=stddev, step=self.steps)
        distributed.add_up_(sums)
        for total in sums:
            total.div_(self.expected_batch_size)

    patch.setattr(PrivateGradients, "_noised", _noised)


# --- norms that are estimated ----------------------------------------------------------------------------

LAYERS = 64
WIDE = 0.6  # a delta at which one estimate, with noise of one clip norm, costs nothing


class Layers(nn.Module):
    """Gives each unit a coordinate of its own in every layer."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Embedding(units, 1) for _ in range(LAYERS))

    def forward(self, units: Tensor) -> Tensor:
        return torch.cat([layer(units) for layer in self.layers], 1)


def estimates_told_apart(seed: int, *, canaries: int = 800) -> bool:
    """Clip each layer by an estimate of its norm, once for many units: who was in?"""
    clipping = Clipping(clip_norm=1.0, per_layer=True)
    try:
        step = NoisyStep(clipping=clipping, projections=1)
    except InvalidParameterError:  # refused, so nothing is released
        return False
    source, model = seeded(seed), Layers(canaries)
    present = torch.from_numpy((words(canaries, source.fork("present", 0)) >> 63).astype(bool))
    private = PrivateGradients(
        model,
        lambda model, unit: LONG * model(unit).sum(1),
        clipping=clipping,
        projections=1,
        noise_multiplier=1.0,
        expected_batch_size=1.0,
        generator=source.fork("noise", 0),
    )
    private.backward(present.nonzero()[:, 0])
    largest = torch.cat([layer.weight.grad for layer in model.layers], 1).amax(1).numpy()
    promised = price(step.event(1.0), delta=WIDE, relation=Relation.ADD_REMOVE).guarantee()
    return audit_outputs(largest[present], largest[~present], claim=promised, confidence=CONFIDENCE).refuted


def price_one_estimate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NoisyStep, "__post_init__", lambda self: None)


BUGS = (
    Planted(
        name="estimates-of-many-layers-priced-as-one",
        bug="each layer is clipped by an estimate of its norm, and the price knows the error of one estimate",
        found_by="event search",
        plant=price_one_estimate,
        audit=estimates_told_apart,
    ),
    Planted(
        name="clipped-after-averaging",
        bug="the sum over the batch is clipped, and not each unit: one unit turns it around",
        found_by="replay on neighbors",
        plant=clip_the_sum,
        audit=replayed,
    ),
    Planted(
        name="divided-by-the-private-batch-size",
        bug="the noisy sum is divided by how many units are in the batch",
        found_by="replay on neighbors",
        plant=divide_by_the_batch,
        audit=replayed,
    ),
    Planted(
        name="not-a-number-reaches-the-sum",
        bug="a unit whose gradient is NaN or infinite makes the whole sum so",
        found_by="replay on neighbors",
        plant=let_nan_through,
        audit=replayed,
    ),
    Planted(
        name="clipped-groups-at-sensitivity-c",
        bug="a clipped average of a group is priced as if one unit moved it by the clip norm, not by twice",
        found_by="replay on neighbors",
        plant=groups_at_sensitivity_one,
        audit=lambda seed: replayed(seed, group_size=2),
    ),
    Planted(
        name="rows-of-a-unit-clipped-one-by-one",
        bug="a unit is an owner of rows, but each row is clipped on its own",
        found_by="replay on neighbors",
        plant=clip_rows_of_a_unit,
        audit=owners_replayed,
    ),
    Planted(
        name="empty-batch-skipped",
        bug="a batch without units is no step: no noise is added",
        found_by="event search",
        plant=skip_empty_batches,
        audit=sampled_step_told_apart,
    ),
    Planted(
        name="noise-repeated-each-step",
        bug="every step draws the same noise from its seed",
        found_by="event search",
        plant=same_noise_each_step,
        audit=two_steps_told_apart,
    ),
    Planted(
        name="noise-repeated-on-resume",
        bug="a resumed run counts its steps from zero, and draws their noise again",
        found_by="event search",
        plant=same_noise_after_resuming,
        audit=lambda seed: two_steps_told_apart(seed, resumed=True),
    ),
    Planted(
        name="adaptive-clip-without-noise",
        bug="the share of units below the threshold, which moves it, gets no noise",
        found_by="event search",
        plant=count_without_noise,
        audit=threshold_told_apart,
    ),
    Planted(
        name="noise-shared-out-among-ranks",
        bug="each of R ranks adds noise of 1/R of the standard deviation, which adds up to too little",
        found_by="one-run scores",
        plant=noise_shared_among_ranks,
        audit=ranks_told_apart,
    ),
)
