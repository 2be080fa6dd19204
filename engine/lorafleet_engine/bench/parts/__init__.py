"""The parts of `lorafleet bench engine`: each module gives the cases of one part. Chosen by command.py."""
