# SPDX-License-Identifier: Apache-2.0
"""How a forward pass used its parameters: the tape and its operations."""
