"""Models behind one contract: logits from tokens and positions, at fixed shapes."""
