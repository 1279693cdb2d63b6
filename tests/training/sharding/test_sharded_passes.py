# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.training import Clipping, CoordinateClipping, PassSettings
from sfumato.training.engine import passes
from sfumato.training.privacy.clipping import Clipper
from sfumato.training.sharding.exchange import PartialSumError
from sfumato.training.sharding.sharded_model import InParts, ShardedModel
from sfumato.training.sharding.sharded_passes import ShardedPasses

PARAMETERS = {"weight": torch.zeros(2, 2)}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("engine='functional'", {"settings": PassSettings(engine="functional")}),
        ("compile", {"settings": PassSettings(compile=True)}),
        ("cuda_graphs", {"settings": PassSettings(cuda_graphs=True)}),
        ("projections", {"projections": 5}),
        ("CoordinateClipping", {"clipping": CoordinateClipping(coordinate_bound=1.0)}),
    ],
)
def test_what_needs_whole_gradients_or_parameters_is_refused_by_its_name(name, given):
    given = {"settings": PassSettings(), "projections": None, "clipping": Clipping(clip_norm=1.0)} | given
    clipper = Clipper(given.pop("clipping"), PARAMETERS)
    with pytest.raises(InvalidParameterError) as error:
        ShardedPasses(None, None, clipper, sharding=None, generator=None, **given)
    assert name in str(error.value)


class CountedPass:
    """A pass that counts how often its sums are computed."""

    computed = 0

    def weighted_sums(self, groups, weights, *, last=False):
        self.computed += 1
        return {name: weights.sum() for group in groups for name in group}


def test_sums_are_not_computed_before_they_leave_because_a_pass_may_be_thrown_away():
    run = CountedPass()
    parted = InParts(run, [["a"], ["b", "c"]])
    assert parted.weighted_sums([["a", "b", "c"]], torch.ones(1, 4), last=True) == {}
    assert run.computed == 0
    (total,) = parted.waiting
    assert total(["b", "c"]).keys() == {"b", "c"} and run.computed == 1


def test_a_sum_that_was_given_away_in_part_ends_the_run_and_is_never_computed_again():
    given = []
    model = ShardedModel.__new__(ShardedModel)
    model._exchange = SimpleNamespace(
        units=[[SimpleNamespace(name=name, trainable=True)] for name in "ab"],
        add=lambda names, totals: given.append(names),
    )

    def total(names):
        if names == ["b"]:
            raise MemoryError
        return {}

    with pytest.raises(PartialSumError, match="microbatch_size"):
        model.give_away([total])
    assert given == [["a"]]
    assert issubclass(PartialSumError, passes._ALWAYS)  # what `Passes` never runs again
