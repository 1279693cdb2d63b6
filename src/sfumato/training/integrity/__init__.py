# SPDX-License-Identifier: Apache-2.0
"""What leaves with a model: the release barrier, comparison of states, rollback."""
