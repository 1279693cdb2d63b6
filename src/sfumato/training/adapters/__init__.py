# SPDX-License-Identifier: Apache-2.0
"""Make existing training loops private: `make_private` and the parts it returns."""
