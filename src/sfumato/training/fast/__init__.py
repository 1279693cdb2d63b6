# SPDX-License-Identifier: Apache-2.0
"""The same sums, faster: cached passes, compilation, CUDA graphs, GPU kernels."""
