# SPDX-License-Identifier: Apache-2.0
"""Counts and medians of groups by PipelineDP and OpenDP, in the peers' environment (`work`).

All are asked for the same: public groups, half of epsilon for the counts and half for the medians, and units
with at most one row in each of a few groups. PipelineDP keeps to these bounds itself, row by row in Python
(its local backend). OpenDP is told that the rows keep to them: in 0.16.0 its `truncate_num_groups(k)` keeps
k - 1 groups, or fails with the polars that it asks for. It chooses a median among candidates.
"""

import time
import warnings

import numpy as np
import opendp.prelude as dp
import pipeline_dp
import polars as pl

NO_DELTA = 1e-300  # PipelineDP wants one, and spends none of it on Laplace noise


def grouped(setting):
    """Return counts, medians and CPU seconds of each run, by peer; or the first line of an error."""
    warnings.simplefilter("ignore", FutureWarning)
    data = np.load(setting["data"])
    peers = {"PipelineDP": by_pipeline_dp, "OpenDP": by_opendp}
    return {peer: tried(release, data, setting) for peer, release in peers.items()}


def tried(release, data, setting):
    """Return all runs of one peer. What it needs before a release, such as rows as tuples, is not timed."""
    found = {"counts": [], "medians": [], "seconds": []}
    try:
        ask = release(data, setting)
        for _ in range(setting["runs"]):
            start = time.process_time()
            counts, medians = ask()
            found["seconds"].append(time.process_time() - start)
            found["counts"].append([float(count) for count in counts])
            found["medians"].append([float(median) for median in medians])
    except Exception as error:
        return f"fails: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return found


def by_pipeline_dp(data, setting):
    """Return a release by PipelineDP."""
    rows = list(zip(data["who"].tolist(), data["group"].tolist(), data["x"].tolist(), strict=True))
    keys, (lower, upper) = list(range(setting["groups"])), setting["bounds"]
    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda row: row[0],
        partition_extractor=lambda row: row[1],
        value_extractor=lambda row: row[2],
    )
    asked = pipeline_dp.AggregateParams(
        metrics=[pipeline_dp.Metrics.COUNT, pipeline_dp.Metrics.PERCENTILE(50)],
        noise_kind=pipeline_dp.NoiseKind.LAPLACE,
        max_partitions_contributed=setting["groups_per_unit"],
        max_contributions_per_partition=1,
        min_value=lower,
        max_value=upper,
    )

    def release():
        budget = pipeline_dp.NaiveBudgetAccountant(total_epsilon=setting["epsilon"], total_delta=NO_DELTA)
        engine = pipeline_dp.DPEngine(budget, pipeline_dp.LocalBackend())
        result = engine.aggregate(rows, asked, extractors, public_partitions=keys)
        budget.compute_budgets()
        found = dict(result)
        return [found[key].count for key in keys], [found[key].percentile_50 for key in keys]

    return release


def by_opendp(data, setting):
    """Return a release by OpenDP on polars."""
    dp.enable_features("contrib")
    rows, size = pl.LazyFrame({name: data[name] for name in ("group", "x")}), len(data["x"])
    keys = pl.LazyFrame({"group": np.arange(setting["groups"])})
    candidates = np.linspace(*setting["bounds"], setting["candidates"]).tolist()
    reach = setting["groups_per_unit"]
    bounds = [
        dp.polars.Bound(per_group=reach),
        dp.polars.Bound(by=["group"], num_groups=reach, per_group=1),
    ]
    values = pl.col.x.fill_nan(0.0).fill_null(0.0)

    def release():
        context = dp.Context.compositor(
            data=rows,
            privacy_unit=dp.unit_of(contributions=bounds),
            privacy_loss=dp.loss_of(epsilon=setting["epsilon"]),
            split_evenly_over=2,
            margins=[dp.polars.Margin(by=["group"], max_length=size, max_groups=setting["groups"])],
        )

        def asked(what):
            query = context.query().group_by("group").agg(what.alias("found")).with_keys(keys)
            return query.release().collect().sort("group")["found"].to_list()

        return asked(dp.len(signed=True)), asked(values.dp.median(candidates))

    return release
