"""The demo: a payment agent killed in the middle, and the real service that it pays through."""
