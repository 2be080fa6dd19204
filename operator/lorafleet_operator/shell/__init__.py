"""How things are done: all I/O of the operator. Never decides what to do."""
