"""fuzz_segments.py: some draws each time, and 10^5 comparisons of each function in the slow tests."""

import pytest
from fuzz_segments import FUNCTIONS, fuzz


@pytest.mark.parametrize("name", FUNCTIONS)
def test_some(device, name):
    done, wrong = fuzz([name], 200, 60, 1, device)
    assert not wrong
    assert done[name] >= 200


@pytest.mark.slow
def test_all(device):
    done, wrong = fuzz(list(FUNCTIONS), 100_000, 1200, 0, device)
    assert not wrong
    assert min(done.values()) >= 100_000
