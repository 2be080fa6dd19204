# Prometheus and promtool of Debian, in the cache.
.PHONY: prometheus-binary dashboards

prometheus-binary:
	@python3 -m e2e.prometheus

dashboards: $(STAMP) ## Write the chart's Grafana dashboards
	$(BIN)/python -m dashboards.generate
