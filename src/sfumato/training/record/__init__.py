# SPDX-License-Identifier: Apache-2.0
"""What is kept of a run: its folder, metrics, fingerprints, progress bar."""
