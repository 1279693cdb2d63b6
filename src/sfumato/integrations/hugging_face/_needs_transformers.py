# SPDX-License-Identifier: Apache-2.0
"""Imported before anything else of this folder: fails where transformers or accelerate is missing."""

import importlib

from sfumato._extras import how_to_install
from sfumato.errors import MissingDependencyError

for _name in ("transformers", "accelerate"):
    try:
        importlib.import_module(_name)
    except ImportError as error:
        raise MissingDependencyError(
            f"this needs {_name}, which is not installed. {how_to_install('huggingface')}"
        ) from error
