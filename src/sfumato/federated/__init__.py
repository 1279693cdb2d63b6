# SPDX-License-Identifier: Apache-2.0
"""Learn where the data is: federated runs with differential privacy, in one process or on Flower.

`federate` simulates a federation in one process. `sfumato.federated.flower` has parts for a Flower project;
it needs the extra `federated`.
"""

from sfumato import _needs_torch  # noqa: F401  # pyright: ignore[reportUnusedImport] - an error where torch is missing
from sfumato.federated.clients.client_rows import AssignedRows, ClientRows, LazyRows
from sfumato.federated.clients.local_training import LocalTraining, local_update
from sfumato.federated.clients.partitions import by_user, dirichlet, iid
from sfumato.federated.clients.vectorized import VectorizedClients
from sfumato.federated.federate import federate

__all__ = [
    "AssignedRows",
    "ClientRows",
    "LazyRows",
    "LocalTraining",
    "VectorizedClients",
    "by_user",
    "dirichlet",
    "federate",
    "iid",
    "local_update",
]
