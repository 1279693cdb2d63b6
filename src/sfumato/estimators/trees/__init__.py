# SPDX-License-Identifier: Apache-2.0
"""Models over bins of features: boosting, trees and forests."""
