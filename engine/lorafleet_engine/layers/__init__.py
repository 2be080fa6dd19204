"""Layers of a decoder: weights plus the kernels they call. Used by model/; they know no pools and no scheduler."""
