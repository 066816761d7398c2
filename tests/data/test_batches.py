"""Sources that are read in order, beside those that lots are drawn from."""

import numpy as np
import pytest

from tfdp import data
from tfdp.data.batches import have_common_rows


@pytest.mark.parametrize("seed", range(5))
def test_parts_have_common_rows_if_their_indices_meet(seed):
    rng = np.random.default_rng(seed)
    whole, found = data.as_source(np.arange(20.0)), set()

    def part():
        made = whole
        for _ in range(2):
            first, last = np.sort(rng.choice(len(made) + 1, 2, replace=False))
            made = made[first:last][:: rng.choice([-2, -1, 1, 2])]
        return made if rng.random() < 0.7 else made[rng.permutation(len(made))]

    for _ in range(100):
        one, other = part(), part()
        rows = ({*each.rows(np.arange(len(each)))[0]} for each in (one, other))
        found.add(have_common_rows(one, other))
        assert have_common_rows(one, other) == bool(set.intersection(*rows))
    assert found == {False, True}
