"""The loader process: fetches, verifies, inspects and packs files, so that neither the api nor the loop ever does."""
