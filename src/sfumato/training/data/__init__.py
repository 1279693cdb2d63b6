# SPDX-License-Identifier: Apache-2.0
"""What a training run reads: privacy units, their rows, and augmentation."""
