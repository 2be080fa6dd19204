"""The demo model and its trained adapters: built once by `make assets`, then served, loaded and compared with peft."""
