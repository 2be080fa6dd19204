# The demo and the end-to-end tests; both stand on a cluster that has the images (e2e/cluster, e2e/images).
.PHONY: demo e2e
demo: $(STAMP) images cluster-up ## A cluster, the chart, the quickstart, and answers from the base and two adapters
	@$(BIN)/python -m e2e.demo

e2e: $(STAMP) images cluster-up ## Tests on the whole cluster, one feature a file
	$(BIN)/pytest e2e -m "e2e and not long"
