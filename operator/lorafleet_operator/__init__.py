"""The operator: decides where adapters live and reconciles pools. Never imports the engine or the gateway."""
