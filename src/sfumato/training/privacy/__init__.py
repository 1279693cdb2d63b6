# SPDX-License-Identifier: Apache-2.0
"""What a training run claims: sampling, clipping, noise, and the event they make together."""
