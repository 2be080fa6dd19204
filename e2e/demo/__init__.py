"""`make demo`: LoraFleet installed on a real cluster and asked a question, start to end."""
