# SPDX-License-Identifier: Apache-2.0
"""Generators of images that learn from a discriminator: DP-GAN, DP-CGAN, PATE-CGAN."""
