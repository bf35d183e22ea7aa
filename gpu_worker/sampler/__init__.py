"""The sampler: parameters by slot, seeds, finish rules, and one launch for the whole batch."""
