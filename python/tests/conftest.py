import gc
import os
import pathlib

# The driver that device memory is registered with here; what opens none never loads it. The core takes the environment as it was when
# it was loaded.
BUILD = pathlib.Path(os.environ.get("KVLEASE_BUILD") or pathlib.Path(__file__).parents[2] / "build")
os.environ["KVLEASE_CUDA"] = str(BUILD / "fake" / "libfakecuda.so")

import device
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


@pytest.fixture
def gpu():
    """A GPU that is not there, for an engine of this thread."""
    if not os.path.exists(os.environ["KVLEASE_CUDA"]):
        missing = f"no {os.environ['KVLEASE_CUDA']}: make build makes the fake"
        if "fakecuda" in os.environ.get("KVLEASE_REQUIRE", "").split(","):
            pytest.fail(missing)
        pytest.skip(missing)
    made = device.Gpu()
    yield made
    made.leave()
