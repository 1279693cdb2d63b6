# SPDX-License-Identifier: Apache-2.0
"""What `sfumato doctor` checks, one module for each area, and the command."""
