"""Simulated time, engines and API server under the real `plan_pool`. Called by `lorafleet plan` and by tests."""
