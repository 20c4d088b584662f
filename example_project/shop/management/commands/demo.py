from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, InterfaceError, connection

from example_project.shop.demo import Run, steps
from example_project.shop.screen import Screen


class Command(BaseCommand):
    help = "Set up the example shop, enqueue jobs of every kind, and show what is stored."
    # Those of a database come with migrate, once it is known to answer.
    requires_system_checks = ()

    def handle(self, **options):
        color = True if options["force_color"] else False if options["no_color"] else None
        run = Run(Screen(self.stdout, color=color))
        try:
            for step in steps():
                step(run)
        except (DatabaseError, InterfaceError) as error:
            raise CommandError(_explained(error)) from error


def _explained(error):
    """Say which database failed and how; a password in its address is not said."""
    asked = connection.settings_dict
    where = f"{asked['NAME']} on {asked['HOST']}" if asked["HOST"] else asked["NAME"]
    hint = "Set DATABASE_URL to use another one; --traceback shows where it happened."
    if "locked" in str(error):
        hint = "Another program is writing to it. Stop that one, or try again in a moment."
    return f"The database {where} cannot be used now: {str(error).strip()}\n{hint}"
