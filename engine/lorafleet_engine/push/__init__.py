"""`lorafleet push`: an adapter's folder into an OCI registry, as engines fetch it. Runs on a person's machine."""
