"""What workers write about themselves."""

import pytest
from django.db import IntegrityError

from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.models import QueueMinute
from taskharbor_django.operations.workers import count_minutes


@pytest.mark.django_db(transaction=True)
def test_minutes_are_counted_all_or_none_so_that_a_second_try_counts_nothing_twice():
    minute = DatabaseDriver().now().replace(second=0, microsecond=0)
    fine, refused = {(minute, "mail"): {"done": 3}}, {(minute, None): {"done": 1}}
    with pytest.raises(IntegrityError):
        count_minutes(DatabaseDriver(), "w", fine | refused)
    count_minutes(DatabaseDriver(), "w", fine)
    count_minutes(DatabaseDriver(), "w", fine)
    assert list(QueueMinute.objects.values_list("queue", "done")) == [("mail", 6)]
