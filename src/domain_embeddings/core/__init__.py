"""The methods themselves: no Kedro, no MLflow (import-linter checks it)."""
