"""A model's own sampling defaults: what its generation_config.json says, literally (spec 74)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_worker.models.vocabulary import read_json
from shared.errors import BadRequest, ConfigError
from shared.sampling_params import from_mapping

FILE = "generation_config.json"
FIELDS = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size", "max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens",
}  # fmt: skip


def model_defaults(folder: Path) -> dict[str, Any]:
    """Defaults in our names; empty where there is no file. What a library would fill in is not used. Raises ConfigError."""
    file = folder / FILE
    if not file.is_file():
        return {}
    literal = read_json(file)
    found = {ours: literal[theirs] for theirs, ours in FIELDS.items() if literal.get(theirs) is not None}
    try:
        from_mapping(found)
    except BadRequest as error:
        raise ConfigError(f"{file}: {error.field}: {error.message}", field="generation_config") from error
    return found
