"""The planner against a real run: the same requests on the local cluster and in the simulation."""
