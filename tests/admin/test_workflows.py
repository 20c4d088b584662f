"""The page of a workflow: its picture, and who may cancel or resume it."""

import pytest
from django.contrib.admin.models import LogEntry

from taskharbor_django.admin.graph import graph
from taskharbor_django.models import DeadLetter, Dependency, Job, Workflow
from taskharbor_django.operations import cancel
from taskharbor_django.operations.drawing import draw
from taskharbor_django.operations.workflow import WorkflowHandle
from taskharbor_django.workflows import chain, chord, group
from tests.factories import job_in, utcnow
from tests.testapp.workflow_tasks import first, plus, total

from . import url


def stored_flow():
    """first -> plus -> total, the first of them dead and the others with it."""
    flow = Workflow.objects.create(name="nightly", created_at=utcnow())
    one = job_in("dead", workflow=flow, task="a.first", has_dependents=True)
    two = job_in("blocked", workflow=flow, task="a.second")
    Dependency.objects.create(job=two, depends_on=one, kind="after")
    Workflow.objects.filter(pk=flow.pk).update(open_jobs=1)
    return flow, one, two


def test_a_workflow_is_drawn_with_its_states_and_links(operator):
    flow, one, two = stored_flow()
    page = operator.get(url("workflow_change", flow.pk)).content.decode()
    assert "<svg" in page
    for job in (one, two):
        assert url("job_change", job.pk) in page
    assert 'class="th-box th-dead"' in page
    assert 'class="th-box th-blocked"' in page
    assert page.count('class="th-arrow th-after"') == 1


def test_a_column_stands_in_the_middle_and_lines_go_from_left_to_right(db):
    handle = chain(group(first.s(1), first.s(2), first.s(3)), total.s()).enqueue()
    picture = graph(draw(handle.using, handle.id))
    last = max(picture.boxes, key=lambda box: box.x)
    others = [box for box in picture.boxes if box is not last]
    assert {box.x for box in others} == {12}
    assert last.y == sorted(box.y for box in others)[1]
    assert len(picture.arrows) == 3
    assert all(box.x + box.width <= picture.width for box in picture.boxes)
    assert all(box.y + box.height <= picture.height for box in picture.boxes)


def test_many_jobs_of_a_task_stand_in_one_box(operator, monkeypatch):
    monkeypatch.setattr(WorkflowHandle.drawing, "__defaults__", (3,))
    handle = chain(group(*(first.s(n) for n in range(5))), total.s()).enqueue()
    page = operator.get(url("workflow_change", handle.id)).content.decode()
    assert "Jobs of one task at one depth stand together" in page
    assert "5 ready" in page
    cancel([handle.jobs.filter(task=first.name).first().pk])
    many, last = graph(handle.drawing()).boxes
    assert (many.words, many.state, last.words) == ("5 jobs", "ready", "cancelled")
    assert [cell.state for cell in many.cells] == ["ready", "cancelled"]
    assert many.cells[-1].x + many.cells[-1].width <= many.x + many.width
    assert many.cells[0].y + many.cells[0].height <= many.y + many.height


def test_many_jobs_that_no_line_tells_apart_are_a_pile_with_a_link_to_each(operator):
    handle = chain(first.s(1), group(*(plus.s(n) for n in range(9))), total.s()).enqueue()
    picture = graph(draw(handle.using, handle.id))
    assert [len(box.nodes) for box in picture.boxes] == [1, 9, 1]
    pile = picture.boxes[1]
    assert pile.words == "9 blocked"
    assert len({(cell.x, cell.y) for cell in pile.cells}) == 9
    assert all(cell.y + cell.height <= pile.y + pile.height for cell in pile.cells)
    assert len(picture.arrows) == 2
    page = operator.get(url("workflow_change", handle.id)).content.decode()
    for job in handle.jobs:
        assert url("job_change", job.pk) in page


def test_who_belongs_to_whom_is_not_piled_away(db):
    """Chords side by side: each final job stands in the middle of those that it waits for."""
    chords = [chord([first.s(n) for n in range(5)], total.s()) for _ in range(2)]
    handle = group(*chords).enqueue()
    picture = graph(draw(handle.using, handle.id))
    assert len(picture.boxes) == 12
    members, finals = picture.boxes[:10], picture.boxes[10:]
    assert [final.y for final in finals] == [members[2].y, members[7].y]


def test_a_tall_picture_begins_at_its_top(db):
    chains = [chain(plus.s(n), plus.s(1)) for n in range(20)]
    handle = chain(first.s(0), group(*chains), total.s()).enqueue()
    picture = graph(draw(handle.using, handle.id))
    tops = {}
    for box in picture.boxes:
        tops.setdefault(box.x, []).append(box.y)
    assert [min(column) for column in tops.values()] == [12, 12, 12, 12]
    assert sorted(tops[12 + 172 + 52]) == [12 + 60 * row for row in range(20)]


def test_the_state_of_a_workflow_is_told(operator):
    flow, one, _ = stored_flow()
    assert 'th-open">open<' in operator.get(url("workflow_changelist")).content.decode()
    WorkflowHandle(id=flow.pk, using="default").cancel()
    assert 'th-dead">dead<' in operator.get(url("workflow_change", flow.pk)).content.decode()
    Job.objects.filter(pk=one.pk).delete()
    page = operator.get(url("workflow_changelist")).content.decode()
    assert 'th-cancelled">cancelled<' in page


def test_a_long_name_is_cut_in_its_box(db):
    flow = Workflow.objects.create(created_at=utcnow())
    job_in("ready", workflow=flow, task=f"a.{'x' * 40}")
    (box,) = graph(draw("default", flow.pk)).boxes
    assert len(box.name) == 22


def test_an_empty_workflow_has_an_empty_picture(operator):
    flow = Workflow.objects.create(created_at=utcnow())
    assert operator.get(url("workflow_change", flow.pk)).status_code == 200


@pytest.mark.parametrize(
    ("what", "permission"), [("cancel", "cancel_workflow"), ("resume", "resume_workflow")]
)
def test_it_is_cancelled_and_resumed_by_who_may(visitor, what, permission):
    flow, one, two = stored_flow()
    address = url("workflow_ask", flow.pk, what)
    others = {"cancel_workflow", "resume_workflow"} - {permission}
    refused = visitor("view_workflow", *others)
    assert address not in refused.get(url("workflow_change", flow.pk)).content.decode()
    assert refused.post(address, {}).status_code == 403
    assert visitor(permission).post(address, {}).status_code == 403
    assert not LogEntry.objects.exists()
    allowed = visitor("view_workflow", permission)
    assert address in allowed.get(url("workflow_change", flow.pk)).content.decode()
    assert allowed.get(address).status_code == 405
    answer = allowed.post(address, {"note": "because"}, follow=True)
    assert answer.status_code == 200
    states = [Job.objects.get(pk=job.pk).state for job in (one, two)]
    assert states == (["dead", "cancelled"] if what == "cancel" else ["ready", "blocked"])
    assert LogEntry.objects.get().change_message == f"{what}: because"
    if what == "resume":
        assert DeadLetter.objects.get(job=one.pk).note == "because"


def test_a_wish_that_nobody_knows_or_a_workflow_that_is_not_there(operator):
    flow, _, _ = stored_flow()
    assert operator.post(url("workflow_ask", flow.pk, "dance")).status_code == 404
    gone = "00000000-0000-4000-8000-000000000000"
    assert operator.post(url("workflow_ask", gone, "cancel")).status_code == 404
    assert (
        operator.post(url("workflow_ask", flow.pk, "cancel"), {"note": "x" * 2000}).status_code
        == 404
    )


def test_a_finished_workflow_offers_nothing(operator):
    handle = chain(first.s(1), plus.s()).enqueue()
    handle.cancel()
    page = operator.get(url("workflow_change", handle.id)).content.decode()
    for what in ("cancel", "resume"):
        assert url("workflow_ask", handle.id, what) not in page
