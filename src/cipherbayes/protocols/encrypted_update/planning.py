"""Which plan an encrypted update has: by where its noise is added."""

from __future__ import annotations

from cipherbayes.protocols.plan import StudyPlan
from cipherbayes.study.schema import Study


def plan_encrypted_update(study: Study) -> StudyPlan:
    """The plan of a study with ``protocol = "encrypted-update"``."""
    if study.as_printed:
        from cipherbayes.protocols.as_printed.plan import plan_as_printed

        return plan_as_printed(study)
    from cipherbayes.protocols.encrypted_update.plan import plan_encrypted

    return plan_encrypted(study)
