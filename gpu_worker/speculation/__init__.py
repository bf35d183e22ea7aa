"""Speculation: drafters guess the next tokens of a text, the target model is fed with all of them at once, and those stand that it
would have sampled itself.

One-hot drafts (n-gram, forced by the grammar, replayed) are verified by sample-and-match: the tokens of a text do not depend on how
many drafts it had, chains or trees. Drafts that were drawn from a distribution may be verified by rejection, which keeps the
distribution of texts. A guided text's drafts are walked by its grammar: no position without a row is sampled.

Drafts follow a golden token that the host knows, so the launch before must have ended: with drafts one launch is in flight. To
enqueue the next forward earlier, the drafter would have to know how many drafts of the running launch stand; a guess at that is a
longer draft of the running launch, which costs a wider forward and no more.
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
from gpu_worker.speculation.tree import DraftTree, merged

__all__ = [
    "Ahead",
    "AheadRows",
    "ChainedDrafter",
    "DraftCounters",
    "DraftProgress",
    "DraftTree",
    "Drafter",
    "DrafterName",
    "Drafting",
    "ForcedDrafter",
    "NgramDrafter",
    "ReplayDrafter",
    "merged",
]
