"""A pytest plugin for runs that only ask whether a test fails: examples are neither made smaller nor kept."""

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "mutants",
    phases=[Phase.explicit, Phase.generate],
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("mutants")
