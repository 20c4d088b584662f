"""What workflows promise: nobody is released twice, and nobody never."""

from . import Change, guard

OPERATIONS = "taskharbor_django/operations"
ADVANCE, DEPENDENTS = f"{OPERATIONS}/advance.py", f"{OPERATIONS}/dependents.py"

RACES = "tests/workflows/test_races.py"
SUBMISSION, REVIVED = f"{RACES}::TestSubmission", f"{RACES}::TestRevival"
AT_ONCE = f"{RACES}::TestFanIn::test_two_members_that_end_at_once_release_the_finalizer_once"
BOTH_COUNTED = (
    f"{RACES}::TestFanIn"
    "::test_two_jobs_that_nobody_waits_for_are_both_counted_when_they_end_at_once"
)
REVIVAL = "tests/workflows/test_revival.py"

GUARDS = [
    guard(
        "submission-without-share-lock",
        Change(f"{OPERATIONS}/edges.py", '"postgresql": "FOR SHARE", ', ""),
        red=[f"{SUBMISSION}::test_that_found_a_job_marked_before_it_ends_sees_the_end"],
    ),
    guard(
        "decrement-skips-dead-dependents",
        Change(
            DEPENDENTS,
            "    dependent.dependencies_left -= 1\n",
            "    if dependent.state != JobState.BLOCKED:\n"
            "        return False\n"
            "    dependent.dependencies_left -= 1\n",
        ),
        red=[f"{REVIVAL}::TestRequeue::test_counts_what_ended_while_the_dependent_was_dead"],
    ),
    guard(
        "dependents-recounted",
        Change(
            ADVANCE,
            "    edges, locked = lock_below(driver, ends.keys() - failed, failed)\n",
            "    from ..models import Dependency\n\n"
            "    edge = Dependency.objects.using(driver.using)\n"
            '    jobs = edge.filter(depends_on__in=list(ends)).values("job")\n'
            "    open_ones = edge.filter(job__in=jobs).exclude(\n"
            '        depends_on__state__in=["done", "dead", "cancelled"]\n'
            "    )\n"
            '    left = Counter(open_ones.values_list("job", flat=True))\n'
            "    edges, locked = lock_below(driver, ends.keys() - failed, failed)\n",
        ),
        Change(
            ADVANCE,
            "    spread(ends, edges, locked, met.keys())\n",
            "    spread(ends, edges, locked, met.keys())\n"
            "    for dependent in locked.values():\n"
            "        dependent.dependencies_left = left[dependent.id]\n",
        ),
        red=[f"{AT_ONCE}[advance.locked]"],
    ),
    guard(
        "open-jobs-recounted",
        Change(
            ADVANCE,
            '        left = F("open_jobs") + Case(*cases, output_field=IntegerField())\n',
            "        left = RawSQL(\n"
            '            "(SELECT count(*) FROM taskharbor_job WHERE taskharbor_job.workflow_id"\n'
            '            " = taskharbor_workflow.id AND taskharbor_job.state NOT IN"\n'
            "            \" ('done', 'dead', 'cancelled'))\",\n"
            "            [],\n"
            "        )\n",
        ),
        Change(
            ADVANCE,
            "from django.db.models import Case,",
            "from django.db.models.expressions import RawSQL\nfrom django.db.models import Case,",
        ),
        red=[BOTH_COUNTED],
    ),
    guard(
        "finalizers-locked-as-they-came",
        Change(
            DEPENDENTS,
            'driver.waiting_for(rows.order_by("pk")).values(*_FIELDS)',
            'driver.waiting_for(rows.order_by("seq")).values(*_FIELDS)',
        ),
        red=[f"{RACES}::TestLockOrder::test_finalizers_are_locked_in_the_order_of_their_ids"],
    ),
    guard(
        "death-does-not-look-again",
        Change(DEPENDENTS, "        if not (new and deep):\n", "        if True:\n"),
        red=[f"{SUBMISSION}::test_that_comes_while_a_job_dies_ends_with_it"],
    ),
    guard(
        "revival-does-not-look-again",
        Change(
            f"{OPERATIONS}/revive.py",
            "    edges, locked = lock_below(driver, (), above, through=JobState.DEAD)\n"
            '    reach("revive.locked")\n',
            "    below = all_edges_below(driver.using, above, JobState.DEAD)\n"
            "    seen = _failed(driver, {edge.job for edge in below})\n"
            "    edges, locked = lock_below(driver, (), above, through=JobState.DEAD)\n"
            '    reach("revive.locked")\n',
        ),
        Change(
            f"{OPERATIONS}/revive.py",
            "failed = _failed(driver, letters)",
            "failed = {job: seen.get(job, {}) for job in letters}",
        ),
        Change(
            f"{OPERATIONS}/revive.py",
            "from .dependents import Below,",
            "from .dependents import all_edges_below, Below,",
        ),
        red=[f"{REVIVED}::test_looks_again_whether_another_dependency_has_died"],
    ),
]
