"""What would happen: the scheduler of the engine under a virtual clock, with modelled step times.

Imports `core`, `kv` and `workload`, and numpy; scipy where something is fitted. Nothing here loads a model.
"""
