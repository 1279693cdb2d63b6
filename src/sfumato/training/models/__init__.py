# SPDX-License-Identifier: Apache-2.0
"""Models to begin with: networks, recipes, LoRA, transfer learning, replacements of batch norm."""
