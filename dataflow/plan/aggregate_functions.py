"""Names of aggregate functions that the planner and the operators treat specially."""

from __future__ import annotations

# The least value by text: the representative of equal values that print differently.
LEAST = "least"
PERCENTILES = frozenset({"percentile_cont", "percentile_disc"})
# Of two arguments.
PAIR_FUNCTIONS = frozenset(
    {
        *("regr_count", "regr_sxx", "regr_syy", "regr_sxy", "regr_avgx", "regr_avgy"),
        *("regr_r2", "regr_slope", "regr_intercept", "covar_pop", "covar_samp", "corr"),
    }
)
