"""Every fault of which we say that it is survived: made on the local cluster, under a client that knows the answers."""
