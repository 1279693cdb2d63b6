# SPDX-License-Identifier: Apache-2.0
"""Parts for a Flower project: a strategy for the server, an app and mods for clients."""

from sfumato import _needs_torch  # noqa: F401  # pyright: ignore[reportUnusedImport] - an error where torch is missing
from sfumato.federated.flower.client_side import client_app
from sfumato.federated.flower.example_level import ExampleLevel
from sfumato.federated.flower.grid_clients import GridClients
from sfumato.federated.flower.local_noise import LocalNoise
from sfumato.federated.flower.private_strategy import PrivateResult, PrivateStrategy
from sfumato.federated.secure_sum.flower_mod import secure_sum_mod
from sfumato.federated.secure_sum.flower_sums import GridSums

__all__ = [
    "ExampleLevel",
    "GridClients",
    "GridSums",
    "LocalNoise",
    "PrivateResult",
    "PrivateStrategy",
    "client_app",
    "secure_sum_mod",
]
