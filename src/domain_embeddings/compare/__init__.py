"""`kedro compare`: settings x seeds, each a run of its own, and one report over all of them."""
