# What takes an hour and not a minute, and the page of what was measured. Results go to docs/reliability as JSON, and
# docs/reliability.md is made of them.
CASES ?= 100000
CYCLES ?= 1000
TRAFFIC_SECONDS ?= 3600
LAWS := tests/engine/scheduler tests/engine/memory tests/engine/adapters
RECORDED := LORAFLEET_RECORDS=$(CURDIR)/docs/reliability

.PHONY: test-long laws faults reliability
laws: $(STAMP) ## Property tests of LAWS in CASES cases each, on all cores, and a record of each module
	$(RECORDED) $(BIN)/python -m e2e.reliability.laws --cases $(CASES) $(LAWS)
	@$(BIN)/python -m e2e.reliability

test-long: laws binaries-apiserver assets envoy-binary cluster-up images ## Soaks, fuzzers, laws with 10^5 cases, long faults (hours; see CASES, CYCLES, TRAFFIC_SECONDS)
	$(RECORDED) LORAFLEET_CYCLES=$(CYCLES) LORAFLEET_TRAFFIC_SECONDS=$(TRAFFIC_SECONDS) \
	  $(BIN)/pytest --timeout=0 -m "long and not gpu" tests
	$(RECORDED) $(BIN)/pytest -m "e2e and long" e2e
	@$(BIN)/python -m e2e.reliability

faults: $(STAMP) cluster-up images ## Every fault on the cluster, its repair time recorded, and docs/reliability.md written anew
	$(RECORDED) $(BIN)/pytest e2e/faults -m e2e
	@$(BIN)/python -m e2e.reliability

reliability: $(STAMP) ## Write docs/reliability.md from the records in docs/reliability
	@$(BIN)/python -m e2e.reliability
