# SPDX-License-Identifier: Apache-2.0
import io

import pytest
import torch
from lightning.pytorch import callbacks

from sfumato.integrations.lightning.loop_state import kept, put_back

from .modules import WARNINGS, Classifier, loader, private, public, trainer

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]


def test_counters_callbacks_and_schedules_are_kept_as_plain_values(tmp_path):
    parts = [callbacks.EarlyStopping("val_loss", patience=9), callbacks.ModelCheckpoint(tmp_path / "files")]
    lit = trainer(private(public_evaluation=True), tmp_path, callbacks=parts, enable_checkpointing=True)
    lit.fit(Classifier(), loader(), public())
    state = kept(lit)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)  # as a checkpoint is read

    others = [callbacks.EarlyStopping("val_loss", patience=9), callbacks.ModelCheckpoint(tmp_path / "files")]
    other = trainer(private(public_evaluation=True), tmp_path, callbacks=others, enable_checkpointing=True)
    other.strategy.connect(module := Classifier())
    module.trainer = other
    other.strategy.setup_optimizers(other)
    put_back(other, state)
    assert other.global_step == 8 and other.current_epoch == lit.current_epoch
    assert others[0].best_score == parts[0].best_score
    assert others[1].best_model_path == parts[1].best_model_path
    assert other.lr_scheduler_configs[0].scheduler.last_epoch == 8
