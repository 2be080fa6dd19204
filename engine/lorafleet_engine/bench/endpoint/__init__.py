"""`lorafleet bench serve`: the benchmark protocol against an OpenAI-compatible endpoint, with the `bench` extra."""
