"""Visitors of the admin."""

from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client


@pytest.fixture
def visitor(db):
    """Log somebody in who has the permissions that are named, and no others."""

    def log_in(*codenames, **options):
        user = get_user_model().objects.create_user(f"visitor {uuid4()}", is_staff=True)
        found = Permission.objects.filter(
            content_type__app_label="taskharbor", codename__in=codenames
        )
        assert len(found) == len(set(codenames)), codenames
        user.user_permissions.set(found)
        client = Client(**options)
        client.force_login(user)
        client.user = user
        return client

    return log_in


@pytest.fixture
def operator(db):
    """Somebody who may do everything."""
    client = Client()
    client.user = get_user_model().objects.create_superuser("operator")
    client.force_login(client.user)
    return client
