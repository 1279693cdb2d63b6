# SPDX-License-Identifier: Apache-2.0
"""Lightning: `PrivateStrategy` makes a `lightning.Trainer` train with differential privacy.

Needs the package `lightning`, which comes with the extra of that name.
"""

try:
    import lightning.pytorch  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as error:
    from sfumato._extras import how_to_install
    from sfumato.errors import MissingDependencyError

    raise MissingDependencyError(
        f"sfumato.integrations.lightning needs the package lightning. {how_to_install('lightning')}"
    ) from error

from sfumato.integrations.lightning.strategy import PrivateStrategy

__all__ = ["PrivateStrategy"]
