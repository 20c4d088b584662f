"""What all screens share: they show, and change nothing but through an action."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import DEFAULT_DB_ALIAS, Error, InterfaceError, OperationalError, connections
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.template.response import SimpleTemplateResponse, TemplateResponse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from ..operations.databases import trouble_elsewhere
from ..operations.storage import aliases, driver_for

logger = logging.getLogger(__name__)

DATABASE = "taskharbor_database"
AWAY = "admin/taskharbor/away.html"
# What a database says that is away, or that gives up; wrong statements are other errors.
LOST = (OperationalError, InterfaceError)
Text = str | Promise


def database_of(request: HttpRequest) -> str:
    """The database that this visitor looks into; `?database=` chooses another one to stay with."""
    known = aliases()
    asked = request.GET.get("database")
    if asked in known:
        request.session[DATABASE] = asked
    chosen = request.session.get(DATABASE)
    return chosen if chosen in known else known[0]


def may(request: HttpRequest, permission: str) -> bool:
    return request.user.has_perm(f"taskharbor.{permission}")


def words_of(problem: Exception) -> str:
    """What its driver has to say about a database that is away, in one line."""
    return " ".join(str(problem).split()) or type(problem).__name__


if TYPE_CHECKING:
    Base = admin.ModelAdmin[Any]
else:
    Base = admin.ModelAdmin  # takes a parameter for the type checker only


class Screen(Base):
    """A page of the admin that reads; who may view the model may see it."""

    actions = None

    @property
    def urls(self) -> list[Any]:
        return [self._shielded(pattern) for pattern in self.get_urls()]

    def _shielded(self, pattern: Any) -> Any:
        """Let a page say so when the database that it shows is away, or goes away meanwhile."""
        view = pattern.callback

        @functools.wraps(view)
        def shielded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            answer = self._answered(request, self._probed, request, view, *args, **kwargs)
            if isinstance(answer, SimpleTemplateResponse):
                # A template has questions too, and Django renders it later, after middleware.
                late = functools.partial(self._answered, request, answer.render)
                answer.render = late  # type: ignore[method-assign]
            return answer

        pattern.callback = shielded
        return pattern

    def _probed(self, request: HttpRequest, view: Any, *args: Any, **kwargs: Any) -> Any:
        """Ask whether the database is there before the page does, and give up sooner than it."""
        if self.admin_site.has_permission(request):
            using = database_of(request)
            if trouble := trouble_elsewhere(using):
                return self._away(request, trouble)
        return view(request, *args, **kwargs)

    def _answered(
        self, request: HttpRequest, ask: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """What is asked for, or the page that says that a database was lost meanwhile."""
        try:
            return ask(*args, **kwargs)
        except LOST as problem:
            logger.warning("%s: a database cannot be asked: %s", request.path, words_of(problem))
            _give_up()
            return self._lost(request, words_of(problem))

    def _lost(self, request: HttpRequest, trouble: str) -> HttpResponse:
        """Say it within the admin, or in a bare page where its own tables cannot be asked."""
        try:
            return self._away(request, trouble).render()
        except Error:
            # Nobody knows who asks, so nothing is told of the database.
            text = render_to_string(AWAY, {"title": _("The database cannot be asked")})
            return HttpResponse(text, status=503)

    def _away(self, request: HttpRequest, trouble: str) -> TemplateResponse:
        self.require_view(request)
        title = _("The database cannot be asked")
        context = {"away": _away_of(database_of(request)), "trouble": trouble}
        page = self.respond(request, "away.html", title, now=timezone.now(), **context)
        page.status_code = 503
        return page

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002  Django's signature
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002  Django's signature
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002  Django's signature
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        rows: QuerySet[Model] = self.model._default_manager.using(database_of(request))
        return rows

    def require_view(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def now(self, request: HttpRequest) -> datetime:
        """The time of the database: the one that every row was written by."""
        return driver_for(database_of(request)).now()

    def respond(
        self, request: HttpRequest, template: str, title: Text, **context: Any
    ) -> TemplateResponse:
        using = database_of(request)
        request.current_app = self.admin_site.name
        shared = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "using": using,
            "aliases": aliases(),
            "now": context.pop("now", None) or driver_for(using).now(),
        }
        return TemplateResponse(request, f"admin/taskharbor/{template}", shared | context)


def _away_of(using: str) -> str:
    """Which one is away: that of the page, unless Django's own was the one to fail."""
    failed = [alias for alias in (using, DEFAULT_DB_ALIAS) if connections[alias].errors_occurred]
    return failed[0] if failed else using


def _give_up() -> None:
    """Let nothing be kept of a request that was to be one transaction."""
    for connection in connections.all(initialized_only=True):
        # Where Django looks: a connection may have settings of its own.
        asked = connections.settings[connection.alias]["ATOMIC_REQUESTS"]
        if asked and connection.in_atomic_block:
            connection.set_rollback(True)
