# SPDX-License-Identifier: Apache-2.0
"""Training loops that are not ours: `make_private` and the parts it gives back."""
