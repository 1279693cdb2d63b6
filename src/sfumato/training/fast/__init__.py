# SPDX-License-Identifier: Apache-2.0
"""Faster ways to the same sums: cached passes, compilation, CUDA graphs, GPU kernels."""
