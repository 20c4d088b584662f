"""The handlers as tasks of Django; to be imported when it is set up."""

from django.tasks import task

from .command import arrivals, meter


@task
def noop(number):
    meter.hit()


@task
def arrive(sent):
    arrivals.note(sent)
