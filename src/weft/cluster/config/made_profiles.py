"""Creates the configuration's profiles with their policies and options."""

from collections.abc import Callable
from typing import Any

from weft.cluster.config.form import BY_AUTO, BY_SCHEDULER_NAME, Configuration
from weft.core.framework import Plugin, Policy, Profile
from weft.core.framework.registry import Registry
from weft.files.form import place
from weft.model import BadInputError
from weft.model.nearest import unknown


def maker(config: Configuration, registry: Registry) -> Callable[..., Policy]:
    """Return `registry.create` with the configured `compat` as the default of that option."""

    def create(name: str, **options: Any) -> Policy:
        system = registry.compat_system(name)
        if system and getattr(config.compat, system, "sane") == "exact":
            options = {"compat": "exact", **options}
        return registry.create(name, **options)

    return create


def profiles(config: Configuration, registry: Registry, where: str = "") -> list[Profile]:
    """Create the profiles with their policies; `BadInputError` for unknown names and options."""
    made, create = [], maker(config, registry)
    for i, profile in enumerate(config.profiles):
        plugins = []
        for j, use in enumerate(profile.policies):
            try:
                plugins.append(Plugin(create(use.name, **use.options), use.weight))
            except BadInputError as error:
                at = place(where, f"profiles[{i}].policies[{j}]")
                raise BadInputError(at, f"{error.where}: {error.problem}") from error
        made.append(
            Profile(
                profile.scheduler_name,
                plugins,
                preferences=profile.preferences,
                preempts=profile.preempt,
                budgets_are_law=profile.disruption_budgets == "law",
            )
        )
    _check_policies(config, registry, where)
    return made


def _check_policies(config: Configuration, registry: Registry, where: str) -> None:
    """Check that each route names a profile, or a policy that needs no options."""
    known = {BY_AUTO, BY_SCHEDULER_NAME, *(profile.scheduler_name for profile in config.profiles)}
    for path, policy in config.extender.routes.items():
        if policy not in known:
            at = place(where, f"extender.routes[{path}]")
            names = registry.names()
            if policy not in names:
                raise BadInputError(at, f"policy: {unknown(policy, [*sorted(known), *names])}")
            try:
                registry.create(policy)
            except BadInputError as error:
                raise BadInputError(at, f"{error.where}: {error.problem}") from error
