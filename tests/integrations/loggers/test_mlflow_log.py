# SPDX-License-Identifier: Apache-2.0
import sqlite3

import pytest
from mlflow.tracking import MlflowClient

from sfumato.integrations.loggers import MlflowLog

from .runs import FACTS, FIGURES, SHOWN, trained

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with one run, the run, and the number of it in the store."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder}/mlflow.db"
    log = MlflowLog(uri)
    assert log.run_id is None
    return folder, MlflowClient(tracking_uri=uri), log, trained(log)


def test_mlflow_gets_what_may_be_seen_and_the_guarantee(store):
    _, client, log, run = store
    found = client.get_run(log.run_id)
    assert sorted(found.data.metrics) == sorted(FIGURES)
    assert found.data.params["steps"] == "6" and found.data.params["privacy_unit"] == "example"
    assert set(found.data.tags) == {"mlflow.runName", *(f"privacy.{name}" for name in FACTS)}
    assert found.data.tags["privacy.statement"] == run.statement()
    assert found.info.status == "FINISHED"
    steps = [metric.step for metric in client.get_metric_history(log.run_id, "epsilon")]
    assert steps == [row.step for row in run.history] and len(steps) == SHOWN


def test_all_times_of_the_run_are_the_beginning_of_a_day(store):
    folder, _, log, _ = store
    with sqlite3.connect(folder / "mlflow.db") as base:
        times = [row[0] for row in base.execute("select timestamp from metrics")]
        (run,) = base.execute("select start_time, end_time, deleted_time, user_id, source_name from runs")
    base.close()
    assert len(times) == SHOWN * len(FIGURES)
    assert {*times, run[0], run[1]} == {times[0]} and times[0] % 86_400_000 == 0
    assert run[2] is None and run[4] == "" and run[3] in ("", "unknown")
    assert log.run_id is not None


def test_a_server_that_is_gone_stops_no_run(monkeypatch):
    log = MlflowLog("http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.warns(UserWarning, match="the logger MlflowLog failed"):
        run = trained(log)
    assert len(run.history) == SHOWN and log.run_id is None
