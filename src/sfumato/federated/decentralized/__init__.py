# SPDX-License-Identifier: Apache-2.0
"""Learning without a server: nodes of a graph average noisy models with their neighbors."""
