"""Runs guides and texts through grammar services, by the mask: what ``maskstream check`` and ``maskstream explain`` do."""
