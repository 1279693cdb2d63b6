# SPDX-License-Identifier: Apache-2.0
"""Learn where the data is: federated runs with differential privacy, in one process or on Flower.

`federate` simulates a federation in one process. `gossip` has no server, and `learn_top` and `train_split`
learn from columns that several parties hold. `sfumato.federated.flower` has parts for a Flower project; it
needs the extra `federated`.
"""

from sfumato import _needs_torch  # noqa: F401  # pyright: ignore[reportUnusedImport] - an error where torch is missing
from sfumato.federated.clients.client_rows import AssignedRows, ClientRows, LazyRows
from sfumato.federated.clients.local_training import LocalTraining, local_update
from sfumato.federated.clients.partitions import by_user, dirichlet, iid
from sfumato.federated.clients.vectorized import VectorizedClients
from sfumato.federated.decentralized.gossip import gossip
from sfumato.federated.decentralized.gossip_run import GossipRun
from sfumato.federated.decentralized.graph import Graph
from sfumato.federated.decentralized.protection import ClippedUpdates, NoisySteps
from sfumato.federated.federate import federate
from sfumato.federated.messages.clipped_noise import ClippedNoise
from sfumato.federated.secure_sum.secure_sum import IntegerNoise, SecureSum
from sfumato.federated.secure_sum.simulated import SimulatedSums
from sfumato.federated.vertical.learn_top import learn_top
from sfumato.federated.vertical.parties import FeatureParty, LabelParty
from sfumato.federated.vertical.train_split import SplitSteps, train_split
from sfumato.federated.vertical.vertical_run import VerticalRun

__all__ = [
    "AssignedRows",
    "ClientRows",
    "ClippedNoise",
    "ClippedUpdates",
    "FeatureParty",
    "GossipRun",
    "Graph",
    "IntegerNoise",
    "LabelParty",
    "LazyRows",
    "LocalTraining",
    "NoisySteps",
    "SecureSum",
    "SimulatedSums",
    "SplitSteps",
    "VectorizedClients",
    "VerticalRun",
    "by_user",
    "dirichlet",
    "federate",
    "gossip",
    "iid",
    "learn_top",
    "local_update",
    "train_split",
]
