"""SGLD without dropout: the baseline that the dropout paper compares with.

Same noise, same releases, same composition by zCDP, hence the same accounting as `dp_dropout`; only
the network has no dropout interpretation.
"""

import functools

from tfdp.accounting import dp_dropout

RELEASED = dp_dropout.RELEASED
CLAIM_ASSUMPTIONS = dp_dropout.CLAIM_ASSUMPTIONS
analyse = dp_dropout.analyse
claimed_epsilon = functools.partial(dp_dropout.claim, default="zcdp")
