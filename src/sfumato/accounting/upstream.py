# SPDX-License-Identifier: Apache-2.0
"""The event classes of dp_accounting, without the rest of dp_accounting.

Importing anything from dp_accounting runs the whole package, its accountants included, which import
scipy.signal and scipy.stats: a second, for classes that need neither. So the one module of events is loaded
on its own, under its own name. Whoever imports dp_accounting before or after gets these very classes.
"""

import importlib
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["DpEvent", "dp_event"]

_NAME = "dp_accounting.dp_event"


def _loaded() -> ModuleType:
    package = find_spec("dp_accounting")  # found, not run
    spec = None if package is None else PathFinder.find_spec(_NAME, package.submodule_search_locations)
    if _NAME in sys.modules or spec is None or spec.loader is None:
        return importlib.import_module(_NAME)
    module = module_from_spec(spec)
    sys.modules[_NAME] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_NAME]
        raise
    return module


if TYPE_CHECKING:
    from dp_accounting import dp_event
    from dp_accounting.dp_event import DpEvent
else:
    dp_event = _loaded()
    DpEvent = dp_event.DpEvent
