# SPDX-License-Identifier: Apache-2.0
"""Loggers for runs: TensorBoard, MLflow and Weights & Biases get what may be seen of a run, and no times.

`train(..., loggers=[TensorBoardLog("runs/a")])`. Each needs its package; the extra `loggers` has all three.
"""

from sfumato.integrations.loggers.mlflow_log import MlflowLog
from sfumato.integrations.loggers.tensorboard_log import TensorBoardLog
from sfumato.integrations.loggers.wandb_log import WandbLog

__all__ = ["MlflowLog", "TensorBoardLog", "WandbLog"]
