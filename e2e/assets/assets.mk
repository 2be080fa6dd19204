# The demo model and its adapters, made once into the cache folder (instant afterwards).
.PHONY: assets
assets: ## Convert the demo model and train its adapters (about 4 minutes once, then cached)
	PYTHONWARNINGS=ignore $(PYTHON) -m e2e.assets.build
