# SPDX-License-Identifier: Apache-2.0
"""What one participant tells another: clipped, with noise that it adds itself."""
