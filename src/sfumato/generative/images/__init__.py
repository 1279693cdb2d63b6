# SPDX-License-Identifier: Apache-2.0
"""Generators of images that learn from summaries or by diffusion, and what all generators of images share."""
