# SPDX-License-Identifier: Apache-2.0
"""The uses of parameters by a forward pass: the tape and its operations."""
