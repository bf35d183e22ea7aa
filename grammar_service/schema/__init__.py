"""The schema front: JSON Schema text to a grammar that accepts exactly its instances, or fewer with a warning, or a refusal."""
