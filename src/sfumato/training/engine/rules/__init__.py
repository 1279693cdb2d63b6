# SPDX-License-Identifier: Apache-2.0
"""Rules: how each operation of torch turns the gradient of its output into per-example gradients.

One file a family of operations. To add one, write an `Op` and a function decorated with `tape.rule`, and
import its file here.
"""

from sfumato.training.engine.rules import attention, cells, conv, embedding, linear, norm, recurrent

__all__ = ["attention", "cells", "conv", "embedding", "linear", "norm", "recurrent"]
