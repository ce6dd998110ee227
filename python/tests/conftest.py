import gc

import lab
import pytest


@pytest.fixture
def engines(request):
    """Makes engines, and closes them."""
    made = []

    def make(name, **config):
        made.append(lab.Engine(name, **config))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
    gc.collect()


@pytest.fixture
def pair(engines):
    """An owner, a reader, and the owner as the reader's engine."""
    owner, reader = engines("P"), engines("D")
    return owner, reader, lab.connect(reader, owner)
