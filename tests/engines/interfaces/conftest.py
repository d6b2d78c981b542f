"""Tests in ``over`` run in a process of their own, which ``test_over_interfaces.py`` starts."""

from tests.engines.platforms import over_interfaces

collect_ignore = [] if over_interfaces() else ["over"]
