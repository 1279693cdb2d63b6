# SPDX-License-Identifier: Apache-2.0
"""Where private rows come from: files, frames, databases, and their schema."""
