"""How drafting went for one text (spec 125)."""

from __future__ import annotations

from dataclasses import dataclass

from shared import metrics


@dataclass(slots=True)
class DraftCounters:
    """``verified``: drafts that had a row to be compared with; ``accepted``: those that became tokens; ``rewound``: drafts that the
    model was fed with and that were taken back. A step that is repeated feeds its drafts again and counts once."""

    accepted: int = 0
    verified: int = 0
    rewound: int = 0

    def add(self, drafted: int, usable: int, accepted: int) -> None:
        """One step: ``drafted`` tokens fed, ``usable`` of them with a row, ``accepted`` of these kept."""
        verified, rewound = min(drafted, usable), drafted - accepted
        self.accepted, self.verified, self.rewound = self.accepted + accepted, self.verified + verified, self.rewound + rewound
        for outcome, count in (("accepted", accepted), ("verified", verified), ("rewound", rewound)):
            if count:
                metrics.draft_tokens_total.labels(outcome).inc(count)
