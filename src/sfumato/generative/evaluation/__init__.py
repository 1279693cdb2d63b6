# SPDX-License-Identifier: Apache-2.0
"""Evaluation of synthetic data: images as arrays, and tables.

Guarantee  What touches private data here is charged to an account first (`memorization.near_copies`). All
           else reads synthetic rows and a public `holdout`: rows of the same kind that are not protected. A
           score on private test rows is a release, and choosing by it breaks privacy; so classifiers are
           fitted and tuned on synthetic rows alone, and the scores of all of them are reported.
"""
