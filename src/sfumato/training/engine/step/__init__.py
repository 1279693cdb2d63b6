# SPDX-License-Identifier: Apache-2.0
"""The parts of one private step: sums, groups, thresholds, the record of steps, and what is refused."""
