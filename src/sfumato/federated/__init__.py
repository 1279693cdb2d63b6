# SPDX-License-Identifier: Apache-2.0
"""Learn where the data is: federated runs with differential privacy, on Flower or in one process."""
