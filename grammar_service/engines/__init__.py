"""The engines behind one contract. ``load`` is the only place that names them; heavy imports happen inside it."""

from __future__ import annotations

import importlib.metadata

from grammar_service.engines.base import Engine
from shared.tokenizer import Vocabulary

NAMES = ("llguidance", "xgrammar")


def versions() -> dict[str, str]:
    """Engine name -> version of what is installed, without importing any engine."""
    return {name: importlib.metadata.version(name) for name in NAMES}


def load(vocabulary: Vocabulary, *, threads: int = 1) -> dict[str, Engine]:
    """Both engines over one vocabulary, warm. Raises BadRequest where the vocabulary cannot be used."""
    from grammar_service.engines.llguidance import LLGuidanceEngine
    from grammar_service.engines.xgrammar import XGrammarEngine

    return {
        "llguidance": LLGuidanceEngine(vocabulary, threads=threads),
        "xgrammar": XGrammarEngine(vocabulary, threads=threads),
    }
