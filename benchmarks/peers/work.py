# SPDX-License-Identifier: Apache-2.0
"""What the peers do, in their own environment: settings as JSON on standard input, results as JSON.

    .venv-peers/bin/python benchmarks/peers/work.py statistics < settings.json     seconds of each release
    .venv-peers/bin/python benchmarks/peers/work.py logistic < settings.json       accuracy of each seed
    .venv-peers/bin/python benchmarks/peers/work.py grouped < settings.json        counts, medians and seconds
    .venv-peers/bin/python benchmarks/peers/work.py cells < settings.json          accuracy or inertia of each

A release that a peer cannot do is an error message in place of a number.
"""

import json
import sys
import time
import warnings

import diffprivlib
import numpy as np
import opendp.prelude as dp
from diffprivlib import tools
from diffprivlib.models import GaussianNB, KMeans, LogisticRegression, RandomForestClassifier
from grouped import grouped

SLOW = 10.0  # seconds


def statistics(setting):
    """Return the seconds of each release by each peer."""
    values = np.load(setting["values"])
    names = {"diffprivlib": diffprivlib_releases, "OpenDP": opendp_releases}
    return {peer: timed(make(values, setting), setting["rounds"]) for peer, make in names.items()}


def timed(releases, rounds):
    """Return the median of some rounds of each release."""
    return {name: seconds(release, rounds) for name, release in releases.items()}


def seconds(release, rounds):
    """Return the time of one release, or the first line of its error. A slow one is asked only once."""
    taken = []
    try:
        while len(taken) <= rounds and sum(taken) < SLOW:
            start = time.perf_counter()
            release()
            taken.append(time.perf_counter() - start)
    except Exception as error:
        return f"fails: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return float(np.median(taken[1:] or taken))


def diffprivlib_releases(values, setting):
    """Return the releases by diffprivlib; a count of all values is that of those which are not zero."""
    epsilon, bounds = setting["epsilon"], tuple(setting["bounds"])
    return {
        "count": lambda: tools.count_nonzero(values, epsilon=epsilon),
        "sum": lambda: tools.sum(values, epsilon=epsilon, bounds=bounds),
        "mean": lambda: tools.mean(values, epsilon=epsilon, bounds=bounds),
        "histogram": lambda: tools.histogram(values, epsilon=epsilon, bins=setting["bins"], range=bounds),
        "quantiles": lambda: tools.quantile(values, setting["qs"], epsilon=epsilon, bounds=bounds),
    }


def opendp_releases(values, setting):
    """Return the releases by OpenDP: its transformations, chained to Laplace noise or to a noisy maximum."""
    dp.enable_features("contrib", "idealized-numerics")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    clamped = space >> dp.t.then_clamp(tuple(setting["bounds"]))
    sized = dp.vector_domain(dp.atom_domain(T=float, nan=False), len(values)), dp.symmetric_distance()
    edges = np.linspace(*setting["bounds"], setting["bins"] + 1).tolist()
    binned = space >> dp.t.then_find_bin(edges=edges)
    mean = sized >> dp.t.then_clamp(tuple(setting["bounds"])) >> dp.t.then_mean()
    categories = list(range(len(edges) + 1))
    return {
        "count": lambda: opendp_noisy(space >> dp.t.then_count(), setting)(values),
        "sum": lambda: opendp_noisy(clamped >> dp.t.then_sum(), setting)(values),
        "mean": lambda: opendp_noisy(mean, setting, rows=2)(values),
        "histogram": lambda: opendp_noisy(binned >> dp.t.then_count_by_categories(categories), setting)(
            values
        ),
        "quantiles": lambda: [opendp_quantile(space, q, setting)(values) for q in setting["qs"]],
    }


def opendp_noisy(query, setting, rows=1):
    """Return a query with the Laplace noise of the budget; a replaced row counts as two in OpenDP."""
    return dp.binary_search_chain(
        lambda scale: query >> dp.m.then_laplace(scale), d_in=rows, d_out=setting["epsilon"]
    )


def opendp_quantile(space, q, setting):
    """Return one of several quantiles by OpenDP: the best of 1000 candidates."""
    share = setting["epsilon"] / len(setting["qs"])
    candidates = np.linspace(*setting["bounds"], 1000).tolist()
    scored = space >> dp.t.then_quantile_score_candidates(candidates, q)
    return dp.binary_search_chain(
        lambda scale: scored >> dp.m.then_noisy_max(dp.max_divergence(), scale, negate=True),
        d_in=1,
        d_out=share,
    )


def logistic(setting):
    """Return the test accuracies of diffprivlib's logistic regression, which knows no delta."""
    data = np.load(setting["data"])
    return {f"diffprivlib, C={c:g}": accuracies(data, c, setting) for c in setting["inverse_regularizations"]}


def accuracies(data, c, setting):
    """Return the accuracy of each seed."""
    found = []
    for seed in range(setting["seeds"]):
        model = LogisticRegression(
            epsilon=setting["epsilon"], data_norm=setting["clip_norm"], C=c, max_iter=5000, random_state=seed
        )
        model.fit(data["train_features"], data["train_labels"])
        found.append(model.score(data["test_features"], data["test_labels"]))
    return found


def cells(setting):
    """Return the accuracies of a forest or of naive Bayes, or the inertias of k-means, for each epsilon."""
    data = np.load(setting["data"])
    reached = {"forest": reached_by_forest, "bayes": reached_by_bayes, "clusters": reached_by_clusters}
    reach, seeds = reached[setting["kind"]], range(setting["seeds"])
    return {
        f"{epsilon:g}": {"diffprivlib": [reach(data, setting, epsilon, seed) for seed in seeds]}
        for epsilon in setting["epsilons"]
    }


def bounds_of(data, setting):
    """Return the bounds of each feature, as diffprivlib takes them."""
    return tuple(np.full(data["train_features"].shape[1], float(end)) for end in setting["bounds"])


def reached_by_forest(data, setting, epsilon, seed):
    """Return the accuracy of a forest with diffprivlib's defaults: bounds of codes end at the largest."""
    highest = np.maximum(data["train_features"].max(axis=0), 1.0)
    model = RandomForestClassifier(
        epsilon=epsilon,
        bounds=(np.zeros(len(highest)), highest),
        classes=setting["classes"],
        random_state=seed,
    )
    model.fit(data["train_features"], data["train_labels"])
    return float(model.score(data["test_features"], data["test_labels"]))


def reached_by_bayes(data, setting, epsilon, seed):
    """Return the accuracy of naive Bayes."""
    model = GaussianNB(epsilon=epsilon, bounds=bounds_of(data, setting), random_state=seed)
    model.fit(data["train_features"], data["train_labels"])
    return float(model.score(data["test_features"], data["test_labels"]))


def reached_by_clusters(data, setting, epsilon, seed):
    """Return the inertia of k-means."""
    rows = data["train_features"]
    model = KMeans(setting["clusters"], epsilon=epsilon, bounds=bounds_of(data, setting), random_state=seed)
    centers = model.fit(rows).cluster_centers_
    return float(((rows[:, None] - centers) ** 2).sum(axis=2).min(axis=1).sum())


def main():
    """Read the setting, do the work, print what came of it."""
    warnings.simplefilter("ignore", diffprivlib.utils.PrivacyLeakWarning)
    work = {"statistics": statistics, "grouped": grouped, "logistic": logistic, "cells": cells}[sys.argv[1]]
    print(json.dumps(work(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
