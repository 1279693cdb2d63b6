# SPDX-License-Identifier: Apache-2.0
"""Training data: privacy units, their rows, and augmentation."""
