"""Speculation: drafters guess the next tokens of a text, the target model is fed with all of them at once, and those stand that it
would have sampled itself.

Drafts are one-hot (n-gram, forced by the grammar, replayed), so verification is sample-and-match: the tokens of a text do not
depend on how many drafts it had. A guided text's drafts are walked by its grammar: no position without a row is sampled.
"""

from gpu_worker.speculation.ahead import Ahead, AheadRows
from gpu_worker.speculation.chained import ChainedDrafter
from gpu_worker.speculation.counters import DraftCounters
from gpu_worker.speculation.drafter import Drafter
from gpu_worker.speculation.drafting import DrafterName, Drafting
from gpu_worker.speculation.forced import ForcedDrafter
from gpu_worker.speculation.ngram import NgramDrafter
from gpu_worker.speculation.progress import DraftProgress
from gpu_worker.speculation.replay import ReplayDrafter

__all__ = [
    "Ahead",
    "AheadRows",
    "ChainedDrafter",
    "DraftCounters",
    "DraftProgress",
    "Drafter",
    "DrafterName",
    "Drafting",
    "ForcedDrafter",
    "NgramDrafter",
    "ReplayDrafter",
]
