# SPDX-License-Identifier: Apache-2.0
import time

from sfumato._extras import how_to_install
from sfumato.integrations.loggers.day import begin_of_day, missing


def test_the_beginning_of_the_day_is_at_most_a_day_ago():
    assert 0 <= time.time() - begin_of_day() < 86_401 and begin_of_day() % 86_400 == 0


def test_a_missing_package_is_named_with_its_extra():
    assert f"wandb. {how_to_install('loggers')}" in str(missing("wandb", "WandbLog"))
