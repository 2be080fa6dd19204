# The demo model and its adapters, made once into the cache folder (instant afterwards).
.PHONY: assets
assets: $(STAMP) ## Convert the demo model and train its adapters (minutes once, then cached)
	@PYTHONWARNINGS=ignore $(BIN)/python -m e2e.assets.build
