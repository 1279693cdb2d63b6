# SPDX-License-Identifier: Apache-2.0
"""Canaries in a training run: they measure it, stay below an honest claim, and leave the model alone."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from sfumato import Budget, Ledger
from sfumato.audit.evidence.results import CheckName
from sfumato.audit.runs import canaries
from sfumato.audit.runs.canaries import Canaries, CanaryRun
from sfumato.errors import InvalidParameterError, UnsupportedModelError
from sfumato.testing import seeded
from sfumato.training import (
    AdaptiveClip,
    Clipping,
    CyclicBatches,
    DpSgd,
    FixedSizeSampling,
    NoisyStep,
    PassSettings,
    PoissonSampling,
    PrivateGradients,
    Runtime,
    ShuffledBatches,
    Trainer,
    TruncatedPoissonSampling,
)
from sfumato.training.data.units import Deferred, Units
from sfumato.training.isolation.isolated_rows import is_row
from sfumato.training.loop import TrainingLoop
from sfumato.training.privacy.clipping import CoordinateClipping, Scaling
from sfumato.training.privacy.noise import IndependentNoise
from sfumato.training.record.run_folder import RunFolder

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

ROWS, COUNT = 20, 400
ALL = ROWS + COUNT  # units, where the relation seats every canary
ONE = Clipping(clip_norm=1.0)


class Stopped(Exception):
    """What a run dies of."""


def mechanism(relation="add-remove", sampling=None, noise=((1.0, 4),), clipping=ONE):
    return DpSgd(
        step=NoisyStep(clipping=clipping),
        sampling=PoissonSampling(sampling_rate=1.0) if sampling is None else sampling,
        noise=noise,
        relation=relation,
    )


def rows(count=ROWS):
    return torch.ones(count, 2), torch.zeros(count, dtype=torch.int64)


def trainer(run, data=None, *, model=None, seed=1, audit=None, public_size=ROWS, **settings):
    return Trainer(
        nn.Linear(2, 2) if model is None else model,
        rows() if data is None else data,
        mechanism=run,
        public_size=public_size,
        delta=1e-5,
        evaluate_every=run.steps,
        progress=False,
        generator=None if seed is None else seeded(seed),
        audit=Canaries(count=COUNT) if audit is None else audit,
        **{"learning_rate": 0.1, **settings},
    )


# --- what it measures -------------------------------------------------------------------------------------

SAMPLERS = {
    "everybody": PoissonSampling(sampling_rate=1.0),
    "poisson": PoissonSampling(sampling_rate=0.3),
    "truncated": TruncatedPoissonSampling(sampling_rate=0.3, batch_size=200, public_size=ALL),
    "fixed": FixedSizeSampling(batch_size=105, public_size=ALL),
    "shuffled": ShuffledBatches(batch_size=105, public_size=ALL),
    "cyclic": CyclicBatches(batch_size=105, public_size=ALL),
}
CASES = [
    ("add-remove", "everybody"),
    ("add-remove", "poisson"),
    ("add-remove", "truncated"),
    ("zero-out", "everybody"),
    ("zero-out", "shuffled"),
    ("zero-out", "cyclic"),
    ("replace-one", "everybody"),
    ("replace-one", "poisson"),
    ("replace-one", "fixed"),
    ("replace-one", "shuffled"),
    ("replace-label", "everybody"),
    ("replace-label", "cyclic"),
]


@pytest.mark.parametrize(("relation", "sampler"), CASES)
def test_an_honest_run_is_told_apart_but_no_better_than_it_claims(relation, sampler):
    sized = sampler not in ("everybody", "poisson")
    run = trainer(mechanism(relation, SAMPLERS[sampler]), public_size=ALL if sized else ROWS).fit()
    assert 0 < run.audit.best.epsilon < run.epsilon
    assert run.audit.claim == run.guarantee
    assert run.audit.best.delta == run.guarantee.delta
    assert run.audit.best.trials == COUNT
    assert run.audit.statement() in run.statement()
    named = [each.name for each in (*run.audit.checks, *run.audit.unchecked)]
    assert sorted(named) == sorted(CheckName)  # each is made, or its reason is given


@pytest.mark.parametrize("wrong", ["rows", "weights"])
def test_rows_and_outputs_that_are_no_numbers_accuse_nobody(wrong):
    features, labels = rows()
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        if wrong == "rows":
            features[::2], features[1::4] = float("nan"), float("inf")
        else:
            model[0].weight.fill_(3e38)
        assert not model(features).isfinite().all()
    assert not trainer(mechanism(), (features, labels), model=model).fit().audit.refuted


def test_an_optimizer_that_cannot_be_copied_is_said_to_be_unchecked():
    def hooked(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        optimizer.register_step_post_hook(lambda *_: None)
        return optimizer

    audit = trainer(mechanism(sampling=SAMPLERS["poisson"]), optimizer=hooked, learning_rate=None).fit().audit
    assert audit.statement().endswith(
        "Not checked: updates, because the optimizer cannot be copied, or its copy cannot take a step."
    )


@pytest.mark.parametrize("relation", ["add-remove", "zero-out", "replace-one", "replace-label"])
def test_half_of_a_claim_is_found_where_everybody_is_in_each_batch(relation):
    run = trainer(mechanism(relation, noise=((4.0, 16),)), audit=Canaries(count=3000)).fit()
    assert run.epsilon / 2 < run.audit.best.epsilon < run.epsilon


@pytest.mark.parametrize("relation", ["add-remove", "zero-out", "replace-one", "replace-label"])
def test_half_of_the_noise_is_found_out(relation, monkeypatch):
    original = IndependentNoise.add_

    def halved(self, sums, *, stddev, step):
        original(self, sums, stddev=stddev / 2, step=step)

    monkeypatch.setattr(IndependentNoise, "add_", halved)
    run = trainer(mechanism(relation, noise=((4.0, 4),)), audit=Canaries(count=1000)).fit()
    assert run.audit.refuted
    assert "THE CLAIM IS FALSE" in run.statement()


def test_noise_that_changes_over_the_steps_is_weighed_by_what_each_step_tells():
    changing = trainer(mechanism(noise=((1.0, 2), (50.0, 20)))).fit()
    constant = trainer(mechanism(noise=((1.0, 2),))).fit()
    assert changing.audit.best.epsilon == pytest.approx(constant.audit.best.epsilon, rel=0.15)


def test_scores_are_the_same_whatever_the_clip_norm_and_the_batch_size_are():
    poisson = PoissonSampling(sampling_rate=0.3)
    plain = trainer(mechanism(sampling=poisson)).fit().audit
    wide = trainer(mechanism(sampling=poisson, clipping=Clipping(clip_norm=3.0)), public_size=90).fit().audit
    assert wide.in_scores == pytest.approx(plain.in_scores, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("sampler", ["shuffled", "cyclic"])
def test_half_of_a_claim_is_found_where_batches_follow_a_schedule(sampler):
    # A canary takes part in 3 of 12 steps. With the noise of the others among it, less is found.
    run = trainer(mechanism("replace-one", SAMPLERS[sampler], noise=((1.5, 12),)), public_size=ALL).fit()
    assert run.epsilon / 2 < run.audit.best.epsilon < run.epsilon


def test_a_batch_of_a_schedule_counts_for_the_canaries_whose_place_is_in_it():
    audited = Canaries(count=COUNT).plant(Units(rows()), mechanism("zero-out", SAMPLERS["cyclic"]), seeded(1))
    audited.host(nn.Linear(2, 2))
    places = audited.units._places
    others = [unit for unit in range(ALL) if unit not in places.tolist()]
    found = audited._in_batch(torch.tensor([others[0], others[-1], int(places[0]), int(places[7])]))
    assert found.nonzero().flatten().tolist() == [0, 7]


def test_contributions_are_measured_by_the_bound_of_their_own_step(monkeypatch):
    seen, observe = [], CanaryRun.observe

    def observed(self, units, private, **told):
        seen.append(told["bound"])
        observe(self, units, private, **told)

    monkeypatch.setattr(CanaryRun, "observe", observed)
    adaptive = Clipping(clip_norm=1.0, adaptive=AdaptiveClip(count_noise_multiplier=4.0))
    training = trainer(mechanism(clipping=adaptive))
    training.fit()
    assert seen[0] == 1.0 and len(set(seen)) == 4  # the first step's is the one stated


def test_bounds_say_where_the_accountant_does_not_vouch_for_them():
    certified = trainer(mechanism("replace-one", SAMPLERS["poisson"])).fit().audit
    accounted = trainer(mechanism("replace-one", SAMPLERS["fixed"]), public_size=ALL).fit().audit
    assert "no lower bound" not in certified.statement()
    assert "which has no lower bound for this event" in accounted.statement()


def test_scores_are_told_for_all_canaries():
    found = trainer(mechanism()).fit().audit
    assert len(found.in_scores) + len(found.out_scores) == COUNT
    assert abs(len(found.in_scores) - COUNT / 2) < 5 * math.sqrt(COUNT) / 2


# --- one run ----------------------------------------------------------------------------------------------


def test_a_second_run_of_a_trainer_is_judged_by_itself():
    training = trainer(mechanism())
    first, second = training.fit().audit, training.fit().audit
    assert second.in_scores == pytest.approx(first.in_scores)  # the seed repeats coins and noise
    assert second.best == first.best


def test_a_run_that_died_leaves_no_evidence_to_the_next(monkeypatch):
    training, original = trainer(mechanism()), TrainingLoop.take_step

    def take_step(self):
        if self.step == 2:
            raise Stopped
        original(self)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(TrainingLoop, "take_step", take_step)
        training.fit()
    assert training.fit().audit.in_scores == pytest.approx(trainer(mechanism()).fit().audit.in_scores)


# --- the self-check ---------------------------------------------------------------------------------------


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        if self.training:
            self.seen.copy_(x.detach().sum(0))
        return x


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5])
@pytest.mark.filterwarnings("ignore:the model or the loss does something")
def test_batches_of_canaries_do_not_stand_in_for_rows_of_a_model_that_keeps_them(seed):
    # About one row and five canaries in a batch: the first one often has canaries alone.
    sampling = PoissonSampling(sampling_rate=0.1)
    data = torch.randn(12, 2, generator=torch.Generator().manual_seed(0)), rows(12)[1]
    training = trainer(
        mechanism(sampling=sampling, noise=((1.0, 30),)),
        data,
        model=nn.Sequential(Remembering(), nn.Linear(2, 2)),
        audit=Canaries(count=100),
        seed=seed,
    )
    with pytest.raises(UnsupportedModelError):
        training.fit()


def test_the_self_check_is_given_synthetic_rows_that_are_no_canaries(monkeypatch):
    given = []
    monkeypatch.setattr(
        "sfumato.training.engine.passes.self_check", lambda *args: bool(given.append(args[-1])) or True
    )
    trainer(mechanism("zero-out", SAMPLERS["poisson"])).fit()
    ((_, x, _, places, pulls),) = given
    assert not places.any() and bool((pulls == 1).all())  # no canary's
    assert not bool((x == 1).all(1).any())  # and no row's of the data, which are ones


# --- where they are ---------------------------------------------------------------------------------------


def test_canaries_lie_among_the_rows_of_a_batch_and_other_rows_keep_their_order():
    data = torch.arange(60.0)[:, None].repeat(1, 2), torch.zeros(60, dtype=torch.int64)
    audited = Canaries(count=COUNT).plant(Units(data), mechanism(), seeded(1))
    batch = audited.units.take(torch.arange(audited.units.num_units))
    real = (batch.rows[-2] == 0).nonzero().flatten()
    assert batch.rows[0][real, 0].tolist() == list(range(60))
    assert batch.rows[0][batch.rows[-2] > 0].count_nonzero() == 0
    thirds = (batch.rows[-2] > 0).float().tensor_split(3)
    assert all(0.5 < float(part.mean()) < 1 for part in thirds)  # about 200 canaries, and 60 others
    assert real[0] < 40 and real[-1] > audited.units.num_units - 40


def test_each_canary_is_found_by_its_place_whatever_the_order_of_a_batch():
    audited = Canaries(count=COUNT).plant(Units(rows()), mechanism(), seeded(1))
    order = torch.randperm(audited.units.num_units, generator=torch.Generator().manual_seed(0))
    batch = audited.units.take(order)
    told = audited.units.canaries(order)
    assert batch.rows[-2][batch.rows[-2] > 0].tolist() == told.tolist()
    assert sorted(told.tolist()) == (audited._auditor.present.nonzero().flatten() + 1).tolist()


def test_a_model_without_parameters_cannot_hold_canaries():
    model = nn.Linear(2, 2)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    audited = Canaries(count=COUNT).plant(Units(rows()), mechanism(), seeded(1))
    with pytest.raises(InvalidParameterError, match="no trainable parameter"):
        audited.host(model)


# --- the model is left alone ------------------------------------------------------------------------------


def test_the_loss_is_given_rows_of_zeros_for_canaries():
    given = []

    def loss(model, x, y):
        if is_row(x):
            given.append(torch._C._functorch.get_unwrapped(x).flatten(0, 1))
        return F.cross_entropy(model(x), y, reduction="none")

    trainer(mechanism(), loss=loss).fit()
    seen = set(map(tuple, torch.cat(given).tolist()))
    assert {(1.0, 1.0), (0.0, 0.0)} < seen and len(seen) == 5  # three are made up, to rehearse and for trials


@pytest.mark.parametrize("relation", ["add-remove", "zero-out", "replace-one"])
def test_a_canary_has_a_gradient_in_its_own_coordinate_alone(relation):
    audited = Canaries(count=COUNT).plant(Units(rows()), mechanism(relation), seeded(1))
    model = nn.Linear(2, 2)
    host = audited.host(model)
    batch = audited.units.take(audited.units._places[[0, 3]])
    losses = audited.loss(lambda model, x, y: F.cross_entropy(model(x), y, reduction="none"))(
        host, *batch.rows
    )
    for place, number in zip((0, 1), batch.rows[-2].tolist(), strict=True):
        host.zero_grad()
        losses[place].backward(retain_graph=True)
        assert not any(bool(p.grad.any()) for p in model.parameters())
        marks = sum(p.grad[:, 0] for name, p in host.named_parameters() if not name.startswith("model."))
        pull = float(batch.rows[-1][place])
        assert marks.nonzero().flatten().tolist() == ([number] if pull else [])
        assert marks[number] == pull


def test_other_rows_have_the_gradient_they_had():
    def loss(model, x, y):
        return F.cross_entropy(model(x), y, reduction="none")

    audited = Canaries(count=COUNT).plant(Units(rows()), mechanism(), seeded(1))
    model = nn.Linear(2, 2)
    batch = audited.units.take(torch.arange(audited.units.num_units))
    audited.loss(loss)(audited.host(model), *batch.rows).sum().backward()
    with_canaries = model.weight.grad.clone()
    model.zero_grad()
    loss(model, *rows()).sum().backward()
    assert torch.allclose(with_canaries, model.weight.grad)


def test_the_run_returns_the_users_own_model_without_anything_hung_on_it(tmp_path):
    model = nn.Linear(2, 2)
    run = trainer(mechanism(), model=model, folder=tmp_path / "run").fit()
    assert run.model is model
    assert list(model.state_dict()) == ["weight", "bias"]
    assert list(torch.load(tmp_path / "run" / "model.pt", weights_only=True)) == ["weight", "bias"]


def test_a_run_without_an_audit_has_no_verdict():
    run = Trainer(nn.Linear(2, 2), rows(), mechanism=mechanism(), public_size=ROWS, delta=1e-5).fit()
    assert run.audit is None


# --- contributions ----------------------------------------------------------------------------------------


def contributions(clipping, *, layers=1):
    """Return what each seated canary adds to the sum, along its own direction."""
    parts = [nn.Linear(2, 2) for _ in range(layers)]
    model = nn.Sequential(*parts)
    audited = Canaries(count=COUNT).plant(
        Units(rows()), mechanism("replace-one", clipping=clipping), seeded(1)
    )
    host = audited.host(model)
    private = PrivateGradients(
        host,
        audited.loss(lambda model, x, y: F.cross_entropy(model(x), y, reduction="none")),
        clipping=clipping,
        noise_multiplier=1e-20,
        expected_batch_size=1,
        generator=seeded(2),
        passes=PassSettings(check=False),
    )
    batch = audited.units.take(audited.units._places)
    private.backward(*batch.rows)
    return audited._coordinates.gradients()[0], batch.rows[-1].sign()


@pytest.mark.parametrize(
    "clipping",
    [
        Clipping(clip_norm=2.0),
        Clipping(clip_norm=2.0, scaling=Scaling.AUTOMATIC),
        Clipping(clip_norm=2.0, scaling=Scaling.GLOBAL, drop_above=5.0),
    ],
    ids=["local", "automatic", "global"],
)
def test_a_canary_contributes_all_that_clipping_allows(clipping):
    moved, signs = contributions(clipping)
    assert torch.allclose(moved, 2.0 * signs, rtol=1e-4)


def test_where_layers_are_clipped_canaries_are_in_several():
    moved, signs = contributions(Clipping(clip_norm=1.0, per_layer=True), layers=2)
    share = math.sqrt(4 / (4 + 2))  # four layers of theirs, and two of the model
    assert torch.allclose(moved, share * signs, rtol=1e-4)


@pytest.mark.parametrize(
    "clipping",
    [
        Clipping(clip_norm=1.0, per_layer=True),
        Clipping(clip_norm=1.0, scaling=Scaling.AUTOMATIC),
        Clipping(clip_norm=1.0, scaling=Scaling.GLOBAL, drop_above=10.0),
        Clipping(clip_norm=1.0, adaptive=AdaptiveClip(count_noise_multiplier=4.0)),
    ],
    ids=["layers", "automatic", "global", "adaptive"],
)
def test_every_style_of_clipping_can_be_audited(clipping):
    run = trainer(mechanism(clipping=clipping)).fit()
    assert 1 < run.audit.best.epsilon < run.epsilon


# --- units of every kind ----------------------------------------------------------------------------------


def test_owners_of_several_rows_can_be_audited():
    owners = torch.arange(ROWS) // 3
    run = trainer(mechanism(), owners=owners, contribution_bound=2, public_size=7).fit()
    assert run.guarantee.privacy_unit == "user"
    assert 1 < run.audit.best.epsilon < run.epsilon


def test_rows_that_are_clipped_one_by_one_are_found_out(monkeypatch):
    def _accumulate(self, units):
        batch = self.units.take(units, self._generator.fork("rows", self.step))
        self.private.accumulate(*batch.rows, row_weights=batch.row_weights)  # rows_per_unit is forgotten

    monkeypatch.setattr(TrainingLoop, "_accumulate", _accumulate)
    owners = torch.arange(ROWS) // 4
    run = trainer(mechanism(noise=((4.0, 4),)), owners=owners, contribution_bound=4, public_size=5).fit()
    assert run.audit.refuted


def test_data_without_rows_can_be_trained_on_with_an_audit():
    run = trainer(mechanism(), rows(0)).fit()
    assert not run.audit.refuted


class NoExamples(Dataset):
    def __len__(self):
        return 0

    def __getitem__(self, index):
        raise IndexError


def test_a_data_set_without_examples_can_be_trained_on_with_an_audit():
    run = trainer(mechanism(), NoExamples()).fit()  # nobody knows what a row looks like: canaries have none
    assert not run.audit.refuted and run.mechanism.steps == 4
    assert not run.audit.tested
    assert "there was no row whose shape a canary could have" in run.statement()
    assert "NOTHING WAS TESTED, as no canary was in any batch" in run.statement()


@pytest.mark.parametrize("data", [rows(), rows(0)], ids=["rows", "no rows"])
def test_where_the_sampler_takes_no_canary_that_is_the_reason_why_nothing_was_tested(data, tmp_path):
    rarely = mechanism(sampling=PoissonSampling(sampling_rate=1e-9))
    run = trainer(rarely, data, folder=tmp_path).fit()
    assert not run.audit.tested and not run.audit.refuted
    assert "NOTHING WAS TESTED, as the sampler took no canary into any batch" in run.statement()
    assert "shape" not in run.audit.statement()


def test_a_canary_among_owners_is_one_unit():
    owned = Units(rows(), owners=torch.arange(ROWS) // 2, contribution_bound=2)
    audited = Canaries(count=COUNT).plant(owned, mechanism("zero-out"), seeded(1))
    places = audited.units._places
    owner = next(unit for unit in range(ALL) if unit not in places.tolist())
    batch = audited.units.take(torch.tensor([owner, int(places[0]), int(places[1])]))
    assert audited.units.num_units == 10 + COUNT
    assert batch.rows_per_unit == 2
    assert batch.row_weights.reshape(-1, 2).sum(1).tolist() == [1.0, 1.0, 1.0]
    assert batch.rows[-2].tolist() == [0, 0, 1, 1, 2, 2]


def test_deferred_rows_are_read_once_and_only_when_the_run_begins():
    reads = []

    def read():
        reads.append(1)
        return rows(), None

    deferred = Deferred(blank=tuple(part[:0] for part in rows()), read=read)
    training = trainer(mechanism(), deferred)
    assert reads == []
    run = training.fit()
    assert len(reads) == 1
    assert 1 < run.audit.best.epsilon < run.epsilon


def test_batches_in_pieces_are_seen_as_a_whole():
    pieces = trainer(mechanism(), runtime=Runtime(microbatch_size=50)).fit()
    whole = trainer(mechanism()).fit()
    assert pieces.audit.best.epsilon == pytest.approx(whole.audit.best.epsilon, rel=0.02)


# --- resuming ---------------------------------------------------------------------------------------------


def interrupted(folder, monkeypatch, *, seed, after=2):
    """Start a run and let it die after some steps."""
    original = TrainingLoop.take_step

    def take_step(self):
        if self.step == after:
            raise Stopped
        original(self)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(TrainingLoop, "take_step", take_step)
        trainer(mechanism(), seed=seed, folder=folder, checkpoint_every=1).fit()


def test_a_resumed_run_goes_on_with_the_same_canaries(tmp_path, monkeypatch):
    interrupted(tmp_path / "run", monkeypatch, seed=1)
    resumed = trainer(mechanism(), folder=tmp_path / "run", checkpoint_every=1).fit(resume=True)
    whole = trainer(mechanism()).fit()
    assert resumed.audit.in_scores == pytest.approx(whole.audit.in_scores)
    assert resumed.audit.best == whole.audit.best


def finished_in_two(folder, monkeypatch, *, ema_decay, settle=Trainer._settle):
    """Let a run die after its last step, and return what a second process makes of it."""

    def die(self, weights):
        raise Stopped

    settings = {"folder": folder, "checkpoint_every": 1, "ema_decay": ema_decay}
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(RunFolder, "finish", die)
        trainer(mechanism(), **settings).fit()
    monkeypatch.setattr(Trainer, "_settle", settle)
    return trainer(mechanism(), **settings).fit(resume=True).audit


@pytest.mark.parametrize("ema_decay", [None, 0.9])
def test_weights_that_change_after_the_last_step_are_found_where_no_step_is_left_to_a_resume(
    tmp_path, monkeypatch, ema_decay
):
    settle = Trainer._settle

    @torch.no_grad()
    def changed(self, session):
        settle(self, session)
        for parameter in session.model.parameters():
            parameter.add_(0.5)
        if session.average is not None:
            for mean in session.average.by_parameter().values():
                mean.add_(0.5)

    clean = finished_in_two(tmp_path / "clean", monkeypatch, ema_decay=ema_decay)
    assert not clean.refuted and "updates" in {check.name for check in clean.checks}
    found = finished_in_two(tmp_path / "changed", monkeypatch, ema_decay=ema_decay, settle=changed)
    assert [check.name for check in found.failures] == ["updates"]


def test_canaries_that_a_resumed_process_drew_for_itself_are_forgotten(tmp_path, monkeypatch):
    drawn = {True: torch.arange(COUNT) < 150, False: torch.arange(COUNT) < 250}  # secure draws differ, too
    with monkeypatch.context() as patch:
        patch.setattr(canaries, "halves", lambda count, least, generator: drawn[True])
        interrupted(tmp_path / "run", monkeypatch, seed=1)
    monkeypatch.setattr(canaries, "halves", lambda count, least, generator: drawn[False])
    run = trainer(mechanism(), folder=tmp_path / "run", checkpoint_every=1).fit(resume=True)
    assert len(run.audit.in_scores) == 150
    assert run.audit.best.epsilon > 1


def test_other_canaries_are_another_run(tmp_path, monkeypatch):
    interrupted(tmp_path / "run", monkeypatch, seed=1)
    other = trainer(mechanism(), folder=tmp_path / "run", checkpoint_every=1, audit=Canaries(count=COUNT + 1))
    with pytest.raises(InvalidParameterError, match="another run"):
        other.fit(resume=True)


# --- bad input --------------------------------------------------------------------------------------------


def test_too_few_canaries_are_refused_and_it_is_said_how_many_are_needed():
    with pytest.raises(InvalidParameterError, match="at least 20, better 1000"):
        Canaries(count=19)
    with pytest.raises(InvalidParameterError, match="at least 56"):
        Canaries(count=20, confidence=0.9999)
    assert Canaries(count=20).count == 20


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": 1.5}, {"confidence": 1.0}, {"confidence": 0.0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        Canaries(**wrong)


def test_norms_of_named_layers_are_refused_before_anything_is_read():
    named = Clipping(layer_norms={"": 1.0})
    with pytest.raises(InvalidParameterError, match="per_layer"):
        trainer(mechanism(clipping=named))


def test_clipped_averages_of_groups_are_refused():
    grouped = DpSgd(
        step=NoisyStep(clipping=ONE, group_size=3),
        sampling=PoissonSampling(sampling_rate=0.5),
        noise=[(1.0, 1)],
        relation="add-remove",
    )
    with pytest.raises(InvalidParameterError, match=r"group_size=3 .* with group_size=1"):
        trainer(grouped)


class Normed(nn.Linear):
    def forward(self, x):
        return super().forward(x) / super().forward(x).norm(dim=1, keepdim=True)


def test_a_model_whose_gradient_at_zeros_is_not_finite_is_refused_before_anything_is_paid(tmp_path):
    model = Normed(2, 2, bias=False)  # 0 / 0 at a row of zeros
    account = Ledger(tmp_path / "l.db").open(
        "a", privacy_unit="example", budget=Budget(epsilon=50, delta=1e-5)
    )
    with pytest.raises(UnsupportedModelError, match=r"row of zeros is not finite.*leave audit"):
        trainer(mechanism(), model=model, account=account, purpose="audit").fit()
    assert not any(release.spent for release in account.releases())
    plain = Trainer(model, rows(), mechanism=mechanism(), public_size=ROWS, delta=1e-5, progress=False)
    assert plain.fit().audit is None  # other rows are no zeros


@pytest.mark.parametrize("sampler", ["fixed", "shuffled", "cyclic"])
def test_a_public_size_without_canaries_is_refused_with_the_number_to_give(sampler):
    alone = replace(SAMPLERS[sampler], public_size=ROWS, batch_size=5)
    with pytest.raises(InvalidParameterError, match=rf"If {ROWS} is that of the data alone, give {ALL}\."):
        trainer(mechanism("replace-one", alone)).fit()
    together = replace(alone, public_size=ALL)
    trainer(mechanism("replace-one", together), public_size=ALL).fit()


def test_clipping_by_coordinate_is_refused():
    mechanism = DpSgd(
        step=NoisyStep(clipping=CoordinateClipping(coordinate_bound=0.1)),
        sampling=PoissonSampling(sampling_rate=0.5),
        noise=[(1.0, 1)],
        relation="add-remove",
    )
    with pytest.raises(InvalidParameterError, match="clipping by coordinate"):
        Canaries(count=100).plant(Units((torch.zeros(4, 2),)), mechanism, None)


def test_the_length_of_many_numbers_is_added_up_in_float64():
    gradients = {"w": torch.full((20_000_000,), 0.1)}
    ((length, size),) = canaries._energies(gradients).values()
    assert length == pytest.approx(float(gradients["w"][0].double()) ** 2 * size, rel=1e-9)
