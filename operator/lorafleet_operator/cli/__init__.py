"""Commands of `lorafleet` that talk to a cluster. Called by lorafleet_contracts.cli through entry points."""
