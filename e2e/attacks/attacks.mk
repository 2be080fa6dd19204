.PHONY: attacks
attacks: $(STAMP) images cluster-up ## Attacks on the cluster; their counts go to docs/attacks.json and docs/security.md
	LORAFLEET_RECORDS=$(CURDIR)/docs $(BIN)/pytest e2e/attacks -m e2e
	@$(BIN)/python -m e2e.attacks
