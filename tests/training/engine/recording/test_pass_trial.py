# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.training import Clipping
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.losses import cross_entropy, weighted
from sfumato.training.engine.recording import pass_trial
from sfumato.training.engine.recording.pass_trial import PassTrial
from sfumato.training.fast import compilation
from sfumato.training.fast.choice import Unusable, Way
from sfumato.training.fast.sizes import Sizes
from sfumato.training.privacy.clipping import Clipper


def trial_of(model, *, rows=4, per_unit=1, clock=None, used=None):
    clipper = Clipper(Clipping(clip_norm=0.5), dict(model.named_parameters()))
    engine, ticks = BookKeeping(model, weighted(cross_entropy)), iter(range(1000))
    return PassTrial(
        engine=engine,
        clipper=clipper,
        model=model,
        eager=lambda batch, per: clipper.sums(engine.run(batch, per_unit=per)),
        shown=(None, torch.randn(3, 2), torch.tensor([0, 1, 0])),
        per_unit=per_unit,
        sizes=lambda coarse: Sizes(step=rows, middle=rows, least=rows),
        use=(lambda recordings: None) if used is None else used.append,
        clock=(lambda: float(next(ticks))) if clock is None else clock,
    )


@pytest.fixture
def only_traced(monkeypatch):
    """A pass is traced and then run as it was traced: all but the compiler, which takes its time."""
    monkeypatch.setattr(torch, "compile", lambda program, **options: program)


def network(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), *more, nn.Linear(3, 2))


def test_the_fastest_of_a_few_turns_counts():
    turns = iter([0.0, 9.0, 10.0, 13.0, 20.0, 28.0, 30.0, 38.0, 40.0, 48.0])
    assert trial_of(network(), clock=lambda: next(turns)).seconds(Way.EAGER) == 3.0


def test_draws_and_operations_are_those_of_a_pass():
    assert not trial_of(network()).draws() and trial_of(network(nn.Dropout(0.5))).draws()
    small, large = (trial_of(model).operations() for model in (nn.Linear(2, 2), network(nn.Tanh())))
    assert 5 < small < large < 500


@pytest.mark.parametrize("per_unit", [1, 2])
@pytest.mark.usefixtures("only_traced")
def test_compiled_passes_are_kept_and_others_made_anew(per_unit):
    used = []
    trial = trial_of(network(), per_unit=per_unit, used=used)
    assert trial.seconds(Way.COMPILED) == 1.0
    trial.keep(Way.COMPILED)
    trial.keep(Way.GRAPHS)
    trial.keep(Way.EAGER)
    compiled, graphs, nothing = used
    batch = (
        torch.ones(4 * per_unit),
        torch.randn(4 * per_unit, 2),
        torch.zeros(4 * per_unit, dtype=torch.int64),
    )
    assert compiled.replay(batch, per_unit).finite() and graphs.replay(batch, per_unit) is None
    assert nothing is None


def test_a_wrong_program_is_never_timed(monkeypatch):
    def halved(run, batch):
        def wrong(given):
            total, sums = run(given)
            return total / 2, sums

        return wrong

    monkeypatch.setattr(compilation, "_compiled", halved)
    with pytest.raises(Unusable, match="does not agree"):
        trial_of(network()).seconds(Way.COMPILED)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("secret 4711"), r"could not be compiled \(RuntimeError"),
        (OSError(28, "no space left on secret 4711"), "files cannot be written"),
        (torch.OutOfMemoryError("4711"), "not enough memory"),
    ],
)
def test_a_compiler_that_raises_is_not_quoted(monkeypatch, error, says):
    def fail(run, batch):
        raise error

    monkeypatch.setattr(compilation, "_compiled", fail)
    with pytest.raises(Unusable, match=says) as caught:
        trial_of(network()).seconds(Way.COMPILED)
    assert "4711" not in str(caught.value) and caught.value.__cause__ is None


def test_passes_that_fail_themselves_are_unusable_too(monkeypatch):
    trial = trial_of(network())
    monkeypatch.setattr(BookKeeping, "run", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(Unusable, match="ZeroDivisionError"):
        trial.seconds(Way.EAGER)


def test_nothing_waits_for_a_device_that_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *args: 1 / 0)
    assert pass_trial._wait(torch.device("cpu")) is None
