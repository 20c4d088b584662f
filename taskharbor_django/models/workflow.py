"""Jobs that belong together, and which of them wait for which."""

from __future__ import annotations

import uuid

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..lifecycle import DependencyKind

NAME_MAX_CHARS = 200


class Workflow(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(_("name"), max_length=NAME_MAX_CHARS, blank=True)
    open_jobs = models.IntegerField(_("open jobs"), default=0, editable=False)
    created_at = models.DateTimeField(_("created at"))
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)

    class Meta:
        verbose_name = _("workflow")
        verbose_name_plural = _("workflows")
        permissions = [
            ("cancel_workflow", _("Can cancel a workflow")),
            ("resume_workflow", _("Can requeue the dead jobs of a workflow")),
        ]

    def __str__(self) -> str:
        return self.name or str(self.id)


class Dependency(models.Model):
    """An edge: `job` waits for `depends_on`."""

    Kind = DependencyKind

    job = models.ForeignKey(
        "taskharbor.Job", models.DO_NOTHING, db_constraint=False, related_name="dependencies"
    )
    depends_on = models.ForeignKey(
        "taskharbor.Job",
        models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="dependents",
    )
    kind = models.CharField(_("kind"), max_length=9, choices=DependencyKind.choices)
    # Where the result of `depends_on` stands among those that `job` takes; NULL: it does not.
    position = models.IntegerField(_("position"), null=True, blank=True)
    # How many jobs the longest path that ends with `job` has, as far as this edge knows.
    depth = models.IntegerField(_("depth"), default=2, db_default=2)

    class Meta:
        verbose_name = _("dependency")
        verbose_name_plural = _("dependencies")
        constraints = [
            models.UniqueConstraint(
                fields=["depends_on", "job", "kind"], name="taskharbor_dependency_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} {self.kind} {self.depends_on_id}"
