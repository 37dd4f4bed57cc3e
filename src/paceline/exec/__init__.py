"""Execution: models, attention, sampler, weights. The only place that imports torch."""
