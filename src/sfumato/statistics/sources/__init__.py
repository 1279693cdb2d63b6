# SPDX-License-Identifier: Apache-2.0
"""Sources of private tables: files, frames, databases, and their schemas."""
