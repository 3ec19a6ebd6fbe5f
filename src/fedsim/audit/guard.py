"""How much of the noise that a job promises was really laid on what crosses the cut.

The mechanism is the one the parties use: where it lays less than it says, that is found here, whatever the attacks
achieve. Whether a party's process calls it is for the tests of the parties.
"""

from __future__ import annotations

import math

from fedsim.attack.finding import Adversary, Estimate, Finding, timed
from fedsim.protocol.guarded import Laid

DOUBT = 4.0  # deviations of chance


@timed
def missing_noise(laid: Laid, promised: float, who: Adversary, what: str) -> Finding:
    """How much of the promised deviation is not there: a mechanism left out, not an attack."""
    missing = 1.0 - laid.deviation / promised
    doubt = DOUBT / math.sqrt(2.0 * laid.numbers) if laid.numbers else 0.0
    measure, knew = "share of the promised noise that is missing", "what was sent, before and after the noise"
    return Finding(f"noise left out of {what}", who, measure, within(missing, doubt), 0.0, laid.numbers, knew)


def within(missing: float, doubt: float) -> Estimate:
    """A share and the doubt about it, as shares can be."""
    low, value, high = (min(1.0, max(0.0, missing + step)) for step in (-doubt, 0.0, doubt))
    return Estimate(value, low, high)
