# SPDX-License-Identifier: Apache-2.0
import csv
import time

import pytest
from lightning.pytorch import callbacks
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from sfumato.errors import InvalidParameterError
from sfumato.integrations.lightning.held_loggers import HeldLogger

from .modules import WARNINGS, Classifier, loader, private, public, trainer

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in WARNINGS),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
]


class Recorder(Logger):
    """Notes what it gets, and at which step of the run; fails if it is told to."""

    name, version = "recorder", 0

    def __init__(self, fails=()):
        super().__init__()
        self.got, self.steps, self._fails, self.trainer = [], [], fails, None

    def _take(self, kind, given):
        if kind in self._fails:
            raise OSError(28, "No space left on device")
        self.got.append((kind, given))
        self.steps.append(None if self.trainer is None else self.trainer.strategy._session)

    @property
    def experiment(self):
        self._take("experiment", None)
        return self

    def log_metrics(self, metrics, step=None):
        self._take("metrics", (step, dict(metrics)))

    def log_hyperparams(self, params, *args, **options):
        self._take("settings", params)

    def finalize(self, status):
        self._take("finalize", status)


def run(logger, folder, module=None, **options):
    strategy = private(public_evaluation=True)
    lit = trainer(strategy, folder, logger=logger, log_every_n_steps=1, **options)
    if isinstance(logger, Recorder):
        logger.trainer = lit
    lit.fit(Classifier() if module is None else module, loader(), public())
    assert strategy.run is not None
    return strategy.run, lit


def test_a_logger_gets_nothing_before_the_run_has_ended(tmp_path):
    logger = Recorder()
    done, _ = run(logger, tmp_path, callbacks=[callbacks.LearningRateMonitor("step")])
    assert set(logger.steps) == {None}  # no run was at work when it was called
    keys = {name for kind, given in logger.got if kind == "metrics" for name in given[1]}
    assert keys == {"val_loss", "val_accuracy", "epoch", "lr-SGD", "privacy_epsilon"}
    epsilons = [given[1]["privacy_epsilon"] for kind, given in logger.got if "privacy_epsilon" in str(given)]
    assert epsilons == sorted(epsilons) and epsilons[-1] == done.epsilon
    facts = [given for kind, given in logger.got if kind == "settings" and "statement" in given]
    assert facts[0]["guarantee"] == str(done.guarantee) and facts[0]["statement"] == done.statement()
    assert ("finalize", "success") in logger.got


@pytest.mark.parametrize("fails", ["experiment", "metrics", "settings", "finalize"])
def test_a_logger_that_fails_stops_nothing_and_loses_nothing(fails, tmp_path):
    logger = Recorder(fails=(fails,))
    if fails == "experiment":  # it is never asked for
        _, lit = run(logger, tmp_path)
    else:
        with pytest.warns(UserWarning, match="the logger Recorder failed"):
            _, lit = run(logger, tmp_path)
    assert isinstance(lit.logger, HeldLogger)
    assert any("val_loss" in metrics for _, metrics in lit.logger.figures)


def test_a_run_that_fails_gives_the_figures_that_were_shown(tmp_path):
    class Fails(callbacks.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                raise RuntimeError("stop")

    logger = Recorder()
    with pytest.raises(RuntimeError, match="stop"):
        run(logger, tmp_path, callbacks=[Fails()])
    assert any("val_loss" in str(given) for kind, given in logger.got if kind == "metrics")
    assert not any("statement" in str(given) for _, given in logger.got)
    assert ("finalize", "failed") in logger.got


def test_the_writer_behind_a_logger_is_refused_during_the_run_and_there_after_it(tmp_path):
    class Draws(Classifier):
        def on_validation_epoch_end(self):
            self.logger.experiment.add_scalar("x", 1.0)

    with pytest.raises(InvalidParameterError, match=r"experiment is used during a private run"):
        run(TensorBoardLogger(tmp_path), tmp_path, Draws())
    _, lit = run(Recorder(), tmp_path)
    assert lit.logger.experiment is lit.logger.logger


class Painter(Recorder):
    def log_image(self, key, images):
        self._take("image", (key, images))

    def watch(self, model):
        self._take("watch", model)


def test_what_only_some_loggers_can_log_is_held_too(tmp_path):
    class Paints(Classifier):
        def on_validation_epoch_end(self):
            self.logger.log_image("x", ["a picture"])

    class Watches(Classifier):
        def on_train_epoch_start(self):
            self.logger.watch(self)

    logger = Painter()
    run(logger, tmp_path, Paints())
    assert [given for kind, given in logger.got if kind == "image"] == [("x", ["a picture"])] * 2
    assert set(logger.steps) == {None}
    with pytest.raises(InvalidParameterError, match=r"Painter\.watch is used during a private run"):
        run(Painter(), tmp_path, Watches())
    assert not hasattr(HeldLogger(Recorder()), "log_image")


def test_tensorboard_of_lightning_gets_all_of_it_at_one_time(tmp_path):
    done, _ = run(TensorBoardLogger(tmp_path, name="logs"), tmp_path)
    (file,) = (tmp_path / "logs" / "version_0").glob("events*")
    times = [event.wall_time for event in EventFileLoader(str(file)).Load()]
    read = EventAccumulator(str(file.parent))
    read.Reload()
    assert {"val_loss", "val_accuracy", "privacy_epsilon", "epoch"} <= set(read.Tags()["scalars"])
    assert "train_loss" not in str(read.Tags())
    assert len(times) > 4 and done.statement() in (file.parent / "hparams.yaml").read_text().replace(
        "\n  ", " "
    )


def test_a_csv_file_has_no_training_loss(tmp_path):
    run(CSVLogger(tmp_path, name="logs"), tmp_path)
    with (tmp_path / "logs" / "version_0" / "metrics.csv").open() as file:
        names = set(next(csv.reader(file)))
    assert names == {"epoch", "step", "val_loss", "val_accuracy", "privacy_epsilon"}


REAL = [
    "ignore:.*:FutureWarning",
    "ignore:.*:ResourceWarning",
    "ignore:.*:pytest.PytestUnraisableExceptionWarning",
    "ignore:.*:UserWarning",
]


class Last(callbacks.Callback):
    """Notes the time and the files when training ends, which is before loggers get anything."""

    def __init__(self, folder):
        self.time, self.files, self._folder = 0.0, None, folder

    def on_train_end(self, trainer, pl_module):
        self.time, self.files = time.time(), list(self._folder.rglob("*.wandb"))


@pytest.mark.slow
@pytest.mark.filterwarnings(*REAL)
def test_mlflow_of_lightning_gets_figures_and_the_guarantee_once_the_run_has_ended(tmp_path):
    from mlflow.tracking import MlflowClient

    place, last = f"sqlite:///{tmp_path}/mlflow.db", Last(tmp_path)
    done, _ = run(MLFlowLogger(tracking_uri=place), tmp_path, callbacks=[last])
    client = MlflowClient(tracking_uri=place)
    (found,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert {"val_loss", "val_accuracy", "privacy_epsilon"} <= set(found.data.metrics)
    assert not any("train_loss" in name for name in found.data.metrics)
    assert found.data.params["guarantee"] == str(done.guarantee)
    rows = [client.get_metric_history(found.info.run_id, name) for name in found.data.metrics]
    times = [found.info.start_time, *(row.timestamp for part in rows for row in part)]
    assert min(times) >= int(last.time * 1000)  # nothing was stamped during the run


@pytest.mark.slow
@pytest.mark.filterwarnings(*REAL)
def test_weights_and_biases_of_lightning_gets_figures_once_the_run_has_ended(tmp_path):
    last, logger = Last(tmp_path), WandbLogger(save_dir=tmp_path, project="p", offline=True)
    done, _ = run(logger, tmp_path, callbacks=[last])
    logger.experiment.finish()
    (file,) = tmp_path.rglob("*.wandb")
    for _ in range(1000):  # another process writes it
        content = file.read_bytes()
        if str(done.guarantee).encode() in content:
            break
        time.sleep(0.02)
    assert last.files == [] and b"privacy_epsilon" in content and b"val_loss" in content
    assert b"train_loss" not in content and str(done.guarantee).encode() in content
