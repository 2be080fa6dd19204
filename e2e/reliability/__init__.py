"""What was measured of faults and long runs: records in docs/reliability, and the page made of them."""
