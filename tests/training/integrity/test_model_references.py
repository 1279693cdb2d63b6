# SPDX-License-Identifier: Apache-2.0
import logging
import math
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.errors import NotPrivateError
from sfumato.training.integrity import model_references as snapshots
from sfumato.training.integrity.model_references import Snapshot, same
from sfumato.training.integrity.release_barrier import Barrier

from ..leaky import LEAKY, Part, X, quietly

TURNED = torch.ones(2, dtype=torch.complex64)


class Keeping:
    def __init__(self):
        self.rows = []


def test_tensors_that_a_hook_puts_into_its_own_list_are_refused_and_its_notes_are_not():
    rows, notes, holder = [], [], Keeping()
    for keep in (rows.append, lambda out: holder.rows.append([out])):
        model = nn.Sequential(Part())
        handle = model[0].register_forward_hook(lambda m, i, out, keep=keep: keep(out))
        with pytest.raises(NotPrivateError, match="forward_hooks"), Barrier(model).guarding(thorough=True):
            model(X)
        assert not rows and not holder.rows
        handle.remove()
    model[0].register_forward_hook(lambda m, i, out: notes.append(out.shape))
    with Barrier(model).guarding(thorough=True):
        model(X)
    assert len(notes) == 1


def test_state_behind_bound_methods_partials_and_closures_is_found():
    class Store:
        def __init__(self):
            self.rows = torch.zeros(3)

        def add(self, m, x):
            self.rows.add_(x[0])

    def closed_over():
        total = torch.zeros(3)
        return lambda m, x: total.add_(x[0])

    def rebound():
        total = torch.zeros(3)

        def add(m, x):
            nonlocal total
            total = total + x[0]

        return add

    def appended(rows, m, x):
        rows.append(x)

    for do in (Store().add, closed_over(), rebound(), partial(appended, [])):
        model = Part(do)
        with (
            torch.no_grad(),
            pytest.raises(NotPrivateError, match="do"),
            Barrier(model).guarding(thorough=True),
        ):
            model(X)
        with Barrier(model).guarding(thorough=True):
            pass


def test_modules_in_lists_and_objects_are_watched_as_well():
    model = Part()
    model.others, model.record.last = [nn.Linear(3, 3)], nn.Linear(3, 3)
    for layer in (model.others[0], model.record.last):
        with pytest.raises(NotPrivateError, match=r"weight"), Barrier(model).guarding(thorough=True):
            layer.weight.data.add_(1)


def test_a_model_that_refers_to_itself_and_to_foreign_objects_is_searched_once():
    model = Part()
    model.itself, model.items = [model], [model.items, model]
    model.logger, model.generator, model.kind = logging.getLogger("a"), torch.Generator(), Part
    model.function, model.module, model.lock = torch.nn.functional.relu, torch, threading.Lock()
    snapshot = Snapshot(model)
    assert len([name for name, module in snapshot.modules if module is model]) == 1
    with Barrier(model).guarding(thorough=True):
        model(X)


def test_a_search_ends_and_what_is_nearest_comes_first(monkeypatch):
    monkeypatch.setattr(snapshots, "_MOST", 500)
    model = Part(quietly(LEAKY["running average"][0]))
    model.far = [[torch.ones(1)] for _ in range(5000)]
    assert len(Snapshot(model).tensors) < 5000
    with pytest.raises(NotPrivateError, match="mean"), Barrier(model).guarding(thorough=True):
        model(X)


@pytest.mark.parametrize(
    ("before", "now", "alike"),
    [
        (1000, int("1000"), True),
        (1, True, False),
        (1, 1.0, False),
        (math.nan, float("nan"), True),
        (0.0, -0.0, False),
        ((1, [2.0]), (1, [2.0]), True),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ({1, 2}, {2, 1}, True),
        (torch.ones(2), torch.ones(2), True),
        (torch.ones(2), torch.ones(2).double(), False),
        (torch.ones(2), torch.ones(3), False),
        (torch.tensor(math.nan), torch.tensor(math.nan), True),
        (torch.tensor(0.0), torch.tensor(-0.0), False),
        (torch.ones(2, device="meta"), torch.ones(2, device="meta"), True),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), True),
        (torch.eye(2).to_sparse(), (2 * torch.eye(2)).to_sparse(), False),
        (TURNED.conj(), TURNED.conj().resolve_conj(), True),
        (np.ones(2), np.ones(2), True),
        (np.ones(2), np.zeros(2), False),
        (SimpleNamespace(a=[1]), SimpleNamespace(a=[1]), True),
        (SimpleNamespace(a=[1]), SimpleNamespace(a=[2]), False),
        (nn.Identity(), nn.Identity(), False),
        (lambda: 1, lambda: 1, False),
    ],
)
def test_what_was_replaced_is_compared_by_type_and_content(before, now, alike):
    assert same(before, now) is alike
    assert same(before, before)
