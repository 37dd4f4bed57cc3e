"""The scheduler: a deterministic state machine without a model, a clock or I/O."""
