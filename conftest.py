"""How Hypothesis runs everywhere in this tree: the same examples each time, and no example has to be quick.

``HYPOTHESIS_PROFILE=explore`` looks for new examples instead.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
