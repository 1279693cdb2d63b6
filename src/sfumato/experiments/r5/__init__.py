# SPDX-License-Identifier: Apache-2.0
"""Report R5. DP-SGD: noise, batches, clipping, transfer learning. One module for each table or figure."""
