"""The admin where queues are kept in two databases, and one of them is away."""

from contextlib import contextmanager

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError, connection, connections

from taskharbor_django.models import Job, Queue
from tests.factories import job_in
from tests.testapp.tasks import add

from . import died, url

DASHBOARD = "/admin/taskharbor/"
SCREENS = ["job", "deadletter", "queue", "worker", "lease", "schedule", "workflow"]
far_add = add.using(queue="far")


def text(answer):
    return answer.content.decode()


def test_one_database_is_not_talked_about(operator):
    page = text(operator.get(DASHBOARD))
    assert "Database:" not in page
    assert "<caption>Databases" not in page


def test_the_dashboard_shows_each_of_them(operator, far):
    add.enqueue(1)
    far_add.enqueue_many([(1,), (2,)])
    page = operator.get(DASHBOARD)
    assert "?database=far" in text(page)
    assert "<caption>Databases" in text(page)
    board = page.context["board"]
    assert (board["using"], board["totals"]["ready"].number) == ("default", 1)
    assert [it.counts["ready"].number for it in board["databases"]] == [1, 2]


def test_a_visitor_chooses_one_and_stays(operator, far):
    job = far_add.enqueue(1)
    page = operator.get(f"{DASHBOARD}?database=far")
    assert page.context["board"]["using"] == far
    assert page.context["board"]["totals"]["ready"].number == 1
    assert operator.get(url("job_changelist")).context["using"] == far
    assert operator.get(url("job_changelist", database="nonsense")).context["using"] == far
    assert str(job.id) in text(operator.get(url("job_change", job.id)))


def test_actions_reach_the_database_that_is_looked_into(operator, far):
    job = far_add.enqueue(1)
    operator.get(f"{DASHBOARD}?database=far")
    sent = {"_selected_action": [job.id], "confirmed": "1", "note": "not needed"}
    assert operator.post(url("job_act", "cancel"), sent).status_code == 302
    assert job.state == "cancelled"
    assert operator.post(url("queue_pause"), {"queue": "far"}).status_code == 302
    assert Queue.objects.using(far).get().paused_by_id == operator.user.pk
    assert LogEntry.objects.filter(object_id=str(job.id)).exists()


def test_the_dashboard_says_which_database_is_away(operator, far_away):
    add.enqueue(1)
    page = operator.get(DASHBOARD)
    assert page.status_code == 200
    assert "far: this database cannot be asked" in " ".join(text(page).split())
    assert page.context["board"]["totals"]["ready"].number == 1


def test_the_dashboard_of_a_database_that_is_away_answers(operator, far_away):
    page = operator.get(f"{DASHBOARD}?database=far")
    assert page.status_code == 200
    assert "far: this database cannot be asked" in " ".join(text(page).split())
    assert "unable to open" in text(page)
    assert "?database=default" in text(page)


def test_a_single_database_apart_from_django_s_may_be_away_too(operator, far_away, settings):
    settings.TASKHARBOR = {**settings.TASKHARBOR, "DATABASE": "far"}
    page = operator.get(DASHBOARD)
    assert page.status_code == 200
    assert "far: this database cannot be asked" in " ".join(text(page).split())


@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_of_a_database_that_is_away_says_so(operator, far_away, screen):
    answer = operator.get(url(f"{screen}_changelist", database="far"))
    assert answer.status_code == 503
    assert "far: unable to open" in text(answer)
    assert "?database=default" in text(answer)
    assert operator.get(url(f"{screen}_changelist", database="default")).status_code == 200


def test_an_action_on_a_database_that_is_away_says_so(operator, far_away):
    operator.get(f"{DASHBOARD}?database=far")
    sent = {"_selected_action": ["4f3c1c52-6a4f-4f3e-a2a3-9d1e63a8a001"], "confirmed": "1"}
    assert operator.post(url("job_act", "cancel"), sent).status_code == 503


def test_who_may_not_see_jobs_is_told_nothing_of_databases(visitor, client, far_away):
    stranger = visitor()
    answer = stranger.get(url("job_changelist", database="far"))
    assert answer.status_code == 403
    assert "unable to open" not in text(answer)
    assert "far" not in text(stranger.get(DASHBOARD)) or stranger.get(DASHBOARD).status_code == 403
    answer = client.get(url("job_changelist", database="far"))
    assert answer.status_code == 302
    assert "taskharbor_database" not in client.session


def test_it_is_there_again_when_the_database_is(operator, far, tmp_path):
    connection = connections[far]
    connection.close()
    there = connection.settings_dict
    connection.settings_dict = {**there, "NAME": str(tmp_path / "no" / "file")}
    assert operator.get(url("job_changelist", database="far")).status_code == 503
    connection.settings_dict = there
    assert operator.get(url("job_changelist", database="far")).status_code == 200
    assert not Job.objects.using(far).exists()
    assert not Queue.objects.using(far).exists()


# -- one that goes away between its probe and a question -----------------------------------------


@pytest.fixture
def dies(far_away, monkeypatch):
    """A database that answers its probe, and nothing after that."""
    monkeypatch.setattr("taskharbor_django.admin.screen.trouble_elsewhere", lambda _: "")
    return far_away


@contextmanager
def refusing(words):
    """Let Django's own database refuse all statements with these words in them."""

    def refuse(run, sql, parameters, many, context):
        if words in sql:
            with connection.wrap_database_errors:
                raise connection.Database.OperationalError("server closed\n  the connection")
        return run(sql, parameters, many, context)

    with connection.execute_wrapper(refuse):
        yield
    connection.errors_occurred = False


@pytest.mark.parametrize("screen", SCREENS)
def test_a_database_that_dies_behind_its_probe_is_named_too(operator, dies, screen):
    answer = operator.get(url(f"{screen}_changelist", database=dies))
    assert answer.status_code == 503
    assert "far: unable to open" in text(answer)
    assert "?database=default" in text(answer)


def test_an_action_that_a_database_dies_under_says_that_it_may_be_done(operator, dies):
    operator.get(f"{DASHBOARD}?database=far")
    sent = {"_selected_action": ["4f3c1c52-6a4f-4f3e-a2a3-9d1e63a8a001"], "confirmed": "1"}
    answer = operator.post(url("job_act", "cancel"), sent)
    assert answer.status_code == 503
    assert "may be done, or done in part" in text(answer)
    assert "Try again" not in text(answer)


def test_a_database_that_dies_under_a_template_is_named_too(operator, far, tmp_path, monkeypatch):
    def die(using):
        connections[using].close()
        gone = {**connections[using].settings_dict, "NAME": str(tmp_path / "no" / "file")}
        connections[using].settings_dict = gone
        return {}

    # The template asks for the workers that have stopped, after this.
    monkeypatch.setattr("taskharbor_django.admin.workers.running_by_worker", die)
    answer = operator.get(url("worker_changelist", database=far))
    assert answer.status_code == 503
    assert "far: unable to open" in text(answer)


@pytest.mark.parametrize("screen", SCREENS)
def test_django_s_own_database_may_die_under_a_page(operator, screen):
    with refusing("taskharbor_"):
        answer = operator.get(url(f"{screen}_changelist"))
    assert answer.status_code == 503
    assert "default: server closed the connection" in text(answer)


def test_the_one_that_failed_is_named_and_not_the_one_that_is_shown(operator, far):
    job = far_add.enqueue(1)
    operator.get(f"{DASHBOARD}?database=far")
    sent = {"_selected_action": [job.id], "confirmed": "1"}
    with refusing("django_admin_log"):
        answer = operator.post(url("job_act", "cancel"), sent)
    assert answer.status_code == 503
    assert "default: server closed the connection" in text(answer)
    assert job.state == "cancelled"


def test_no_page_of_one_thing_fails_with_its_database(operator):
    job = died("f1")
    pages = [url("job_change", job.pk), url("deadletter_changelist", fingerprint="f1")]
    pages += [url("job_history", job.pk), url("workflow_change", job.pk)]
    with refusing("taskharbor_"):
        assert [operator.get(page).status_code for page in pages] == [503] * len(pages)


@pytest.mark.parametrize("words", ["", "django_session", "auth_user"])
def test_while_nobody_knows_who_asks_nothing_is_told(operator, words):
    with refusing(words):
        answer = operator.get(url("job_changelist"))
    assert answer.status_code == 503
    assert "The database cannot be asked" in text(answer)
    assert "server closed" not in text(answer)
    assert operator.get(url("job_changelist")).status_code == 200


def test_who_may_not_see_a_page_is_not_told_that_it_failed(visitor):
    stranger = visitor("view_queue")
    with refusing("taskharbor_"):
        assert stranger.get(url("job_changelist")).status_code == 403
        assert stranger.get(url("queue_changelist")).status_code == 503


@pytest.mark.parametrize("own", [False, True])
def test_a_request_that_was_one_transaction_keeps_nothing(operator, monkeypatch, own):
    def die_late(*args):
        Queue.objects.create(name="half")
        raise OperationalError("too late")

    monkeypatch.setattr("taskharbor_django.admin.jobs._tabs", die_late)
    if own:  # as connections of a worker have
        default = connections["default"]
        monkeypatch.setattr(default, "settings_dict", {**default.settings_dict})
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    assert operator.get(url("job_changelist")).status_code == 503
    assert not Queue.objects.exists()


def test_a_wrong_statement_is_no_absence(operator, monkeypatch):
    from django.db import ProgrammingError

    def wrong(*args):
        raise ProgrammingError("no such column")

    monkeypatch.setattr("taskharbor_django.admin.jobs._tabs", wrong)
    with pytest.raises(ProgrammingError):
        operator.get(url("job_changelist"))


def test_the_dashboard_names_a_database_that_dies_behind_its_probe(operator, far_away, monkeypatch):
    monkeypatch.setattr("taskharbor_django.admin.dashboard.trouble_elsewhere", lambda _: "")
    page = operator.get(f"{DASHBOARD}?database=far")
    assert page.status_code == 200
    assert "far: this database cannot be asked" in " ".join(text(page).split())
    assert "far: unable to open" in text(page)


def test_the_dashboard_asks_again_who_is_away(operator, far, tmp_path, monkeypatch):
    from taskharbor_django.operations import databases

    real, seen = databases.state_counts, []

    def die_once(using):
        if using == far and not seen.append(using) and len(seen) == 1:
            connections[far].close()
            gone = {**connections[far].settings_dict, "NAME": str(tmp_path / "no" / "file")}
            connections[far].settings_dict = gone
        return real(using)

    monkeypatch.setattr(databases, "state_counts", die_once)
    job_in("ready")
    page = operator.get(DASHBOARD)
    assert "far: this database cannot be asked" in " ".join(text(page).split())
    assert page.context["board"]["totals"]["ready"].number == 1


def test_the_dashboard_survives_django_s_own_database(operator):
    with refusing("taskharbor_"):
        page = operator.get(DASHBOARD)
    assert page.status_code == 200
    assert "default: server closed the connection" in text(page)
