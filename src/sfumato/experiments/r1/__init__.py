# SPDX-License-Identifier: Apache-2.0
"""Report R1. DP-SGD and LabelDP-Pro. One module for each table or figure."""
