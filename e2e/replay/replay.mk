.PHONY: replay

replay: $(STAMP) ## The planner against a real run of the cluster: docs/planner-replay.json
	$(BIN)/python -m e2e.replay
