"""An incident from the first look to the repair, in a real browser, with and without JavaScript."""

import threading
from datetime import timedelta

import pytest
from django.db import connections
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from taskharbor_django import requeue
from taskharbor_django.admin import acting
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import DeadLetter, Job, QueueMinute
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.values import Outcome
from tests.admin import EVIL, died
from tests.factories import job_in, utcnow

from .conftest import complaints

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

PATIENCE = 30
LEASE = timedelta(minutes=5)


def until(condition):
    """Wait for it; a page that gives way to another, or a part of it, is looked at again."""
    wait = WebDriverWait(
        None, PATIENCE, poll_frequency=0.05, ignored_exceptions=[WebDriverException]
    )
    return wait.until(lambda _: condition(), "it never came to that")


def element(driver, css):
    """The element once it is there."""
    return until(lambda: next(iter(driver.find_elements(By.CSS_SELECTOR, css)), None))


def body(driver):
    """What the page says; a page that is just giving way to another is read again."""
    return until(lambda: driver.find_element(By.TAG_NAME, "body").text)


def click(driver, css):
    """Click what leads to no other page."""
    click_first(driver, By.CSS_SELECTOR, css)


def follow(driver, css):
    """Click a link."""
    leave(driver, By.CSS_SELECTOR, css)


def press(driver, label):
    """Press the button that says so; each of them leads to another page."""
    path = f"//button[starts-with(normalize-space(), '{label}')] | //input[@value='{label}']"
    leave(driver, By.XPATH, path)


def leave(driver, by, what):
    """Click it, and wait for the next page: nothing is read or clicked on the one before it."""
    old = element(driver, "html")
    click_first(driver, by, what)
    until(lambda: is_gone(old) and driver.execute_script("return document.readyState") != "loading")


def is_gone(page):
    try:
        page.is_enabled()
    except StaleElementReferenceException:
        return True
    return False


def click_first(driver, by, what):
    """Click it once it is seen; a live part may replace it between the look and the click."""

    def clicked():
        for found in [each for each in driver.find_elements(by, what) if each.is_displayed()][:1]:
            found.click()
            return True
        return False

    until(clicked)


def incident(number=5):
    for _ in range(number):
        died("mail-down", queue="mail", traceback="Traceback: mail.shop.example refused")
    died("other", queue="reports")
    QueueMinute.objects.create(
        minute=utcnow().replace(second=0, microsecond=0), queue="mail", worker="w", dead=number
    )


def drain():
    """Do what a worker does: run everything that is ready."""
    driver = driver_for("default")
    held = driver.reserve("mail", now=driver.now(), lease_for=LEASE, limit=100)
    outcomes = [
        Outcome(job_id=it.job.id, token=it.lease.token, kind=OutcomeKind.ACK) for it in held
    ]
    assert driver.settle(outcomes, now=driver.now()) == []
    return len(held)


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without scripts"])
def test_an_operator_finds_the_cause_and_requeues_all_of_it(browser, site, javascript, monkeypatch):
    monkeypatch.setattr(acting, "PORTION", 2)
    incident()
    driver = browser(javascript=javascript)
    driver.get(f"{site}/admin/taskharbor/")
    assert "Jobs died within the last hour: mail 5" in body(driver)
    follow(driver, ".th-warnings .th-dying a")
    assert "5 dead jobs in 1 group" in body(driver)
    follow(driver, ".th-table tbody th a")
    click(driver, ".th-letter summary")
    until(lambda: "mail.shop.example refused" in body(driver))
    press(driver, "Requeue")
    assert "5 jobs are meant." in body(driver)
    element(driver, "textarea[name=note]").send_keys("the mail server is back")
    press(driver, "Requeue")
    for looked_at in () if javascript else (2, 4):
        assert f"{looked_at} of 5 jobs looked at." in body(driver)
        press(driver, "Continue")
    until(lambda: "5 jobs requeued." in body(driver))
    notes = set(DeadLetter.objects.filter(queue="mail").values_list("note", flat=True))
    assert notes == {"the mail server is back"}
    driver.get(f"{site}/admin/taskharbor/")
    ready = "//th[normalize-space()='mail']/following-sibling::td[1]"
    until(lambda: driver.find_element(By.XPATH, ready).text == "5")
    assert drain() == 5
    if not javascript:
        driver.refresh()
    # With scripts the page learns of it by itself.
    until(lambda: [e.text for e in driver.find_elements(By.XPATH, ready)] == ["0"])
    assert complaints(driver) == []
    connections.close_all()


def test_a_hidden_page_asks_for_nothing(browser, site):
    job_in("ready", queue="mail")
    driver = browser()
    driver.get(f"{site}/admin/taskharbor/")
    driver.execute_script(
        """
        window.asked = 0;
        const real = window.fetch;
        window.fetch = (...all) => { window.asked += 1; return real(...all); };
        window.seen = true;
        Object.defineProperty(document, "hidden", { get: () => !window.seen });
        """
    )
    show(driver, seen=False)
    element(driver, "#th-live")
    driver.execute_script("document.getElementById('th-live').dataset.thRefresh = '0.05'")
    show(driver, seen=False)
    threading.Event().wait(0.5)  # ten times as long as a page that is seen would wait
    assert driver.execute_script("return window.asked") == 0
    show(driver, seen=True)
    until(lambda: driver.execute_script("return window.asked") >= 1)
    # When the server does not answer, the page says so, and until it does again.
    note = element(driver, "#th-away")
    assert not note.is_displayed()
    driver.execute_script(
        "window.answers = window.fetch; window.fetch = () => Promise.reject(new TypeError())"
    )
    show(driver, seen=False)
    show(driver, seen=True)
    until(note.is_displayed)
    driver.execute_script("window.fetch = window.answers")
    until(lambda: not note.is_displayed())
    # Nor is it a page that Django's own database could not be asked for.
    driver.execute_script("window.fetch = async () => new Response('', { status: 500 })")
    until(note.is_displayed)
    assert "mail" in body(driver)
    driver.execute_script("window.fetch = window.answers")
    until(lambda: not note.is_displayed())


def show(driver, *, seen):
    driver.execute_script(
        "window.seen = arguments[0]; document.dispatchEvent(new Event('visibilitychange'))", seen
    )


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_page_breaks_a_strict_policy_or_runs_what_is_stored(browser, site, dark):
    facts = {"task": EVIL, "tags": {EVIL: EVIL}, "last_error": EVIL, "correlation_id": EVIL}
    job = died("f1", traceback=EVIL, **facts)
    DeadLetter.objects.filter(job=job.pk).update(task=EVIL, error=EVIL, error_class=EVIL)
    running = job_in("inflight", progress=40, progress_message=EVIL, **facts)
    driver = browser(dark=dark)
    pages = ["", "job/", "job/?state=dead", f"job/{job.pk}/change/", f"job/{running.pk}/change/"]
    pages += ["deadletter/", "deadletter/?fingerprint=f1", "queue/", "worker/", "lease/"]
    pages += ["schedule/", "workflow/", f"job/{job.pk}/history/"]
    for page in pages:
        driver.get(f"{site}/admin/taskharbor/{page}")
        assert driver.find_elements(By.CSS_SELECTOR, "#content"), page
        assert not driver.find_elements(By.CSS_SELECTOR, "#content img, #content script"), page
    assert complaints(driver) == []
    background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is not dark


def test_the_policy_is_in_force(browser, site):
    """Or the test above would prove nothing."""
    driver = browser()
    driver.get(f"{site}/admin/taskharbor/")
    driver.execute_script(
        "const made = document.createElement('script'); made.textContent = 'window.ran = 1';"
        "document.body.append(made)"
    )
    assert driver.execute_script("return window.ran") is None
    assert any("Content Security Policy" in each for each in complaints(driver))


def test_all_rows_of_a_page_are_selected_at_once(browser, site):
    for _ in range(3):
        died("f1")
    driver = browser()
    driver.get(f"{site}/admin/taskharbor/deadletter/?fingerprint=f1")
    click(driver, "input[data-th-all]")
    press(driver, "Discard")
    assert "3 jobs are meant." in body(driver)
    press(driver, "Discard")
    assert "3 jobs discarded." in body(driver)
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without scripts"])
@pytest.mark.parametrize("page", ["job/?state=dead", "deadletter/?fingerprint=f1"])
def test_buttons_are_for_all_until_something_is_selected(browser, site, javascript, page):
    for _ in range(3):
        died("f1")
    driver = browser(javascript=javascript)
    driver.get(f"{site}/admin/taskharbor/{page}")
    bars = (".th-on-all", ".th-on-selected")
    assert [is_seen(driver, css) for css in bars] == [True, False]
    click(driver, "input[name=_selected_action]")
    assert [is_seen(driver, css) for css in bars] == [False, True]
    press(driver, "Requeue")
    assert "1 job is meant." in body(driver)
    driver.get(f"{site}/admin/taskharbor/{page}")
    press(driver, "Requeue")
    assert "3 jobs are meant." in body(driver)


PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}


def on_a_phone(driver):
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    return driver


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without scripts"])
@pytest.mark.parametrize("page", ["job/?state=dead", "deadletter/"])
def test_a_filter_is_folded_on_a_phone_and_open_on_a_desk(browser, site, javascript, page):
    died("f1")
    driver = browser(javascript=javascript)
    driver.get(f"{site}/admin/taskharbor/{page}")
    assert [is_seen(driver, css) for css in (".th-filter", ".th-fold summary")] == [True, False]
    on_a_phone(driver).get(f"{site}/admin/taskharbor/{page}")
    assert [is_seen(driver, css) for css in (".th-filter", ".th-fold summary")] == [False, True]
    click(driver, ".th-fold summary")
    until(lambda: is_seen(driver, ".th-filter"))
    assert complaints(driver) == []


def is_seen(driver, css):
    """Ask the browser; Selenium itself takes what is in a closed <details> for hidden."""
    return driver.execute_script("return arguments[0].checkVisibility()", element(driver, css))


def test_a_page_begins_at_its_top(browser, site):
    for _ in range(30):
        job_in("done")
    driver = browser()
    driver.get(f"{site}/admin/taskharbor/job/?state=done")
    assert (
        driver.execute_script("return window.scrollY + document.querySelector('#main').scrollTop")
        == 0
    )


@pytest.mark.parametrize("page", ["job/?state=dead", "deadletter/?fingerprint=f1"])
def test_all_rows_of_a_page_are_selected_at_once_on_a_phone(browser, site, page):
    for _ in range(3):
        died("f1")
    driver = on_a_phone(browser())
    driver.get(f"{site}/admin/taskharbor/{page}")
    assert "Select all on this page" in body(driver)
    click(driver, ".th-check label")
    boxes = driver.find_elements(By.NAME, "_selected_action")
    assert [box.is_selected() for box in boxes] == [True] * 3


def test_no_page_is_wider_than_a_phone(browser, site):
    task = "a.very.long.path.to.some.module.tasks.with_a_name"
    for state in ("ready", "inflight"):
        job_in(state, queue="mail", task=task, progress=30, tags={"tenant": "acme"})
    job = died("f1", task=task, queue="mail")
    driver = on_a_phone(browser())
    pages = ["", "job/", "job/?state=ready", f"job/{job.pk}/change/", f"job/{job.pk}/history/"]
    pages += ["deadletter/", "deadletter/?fingerprint=f1", "queue/", "worker/", "lease/"]
    pages += ["schedule/", "schedule/add/", "workflow/"]
    for page in pages:
        driver.get(f"{site}/admin/taskharbor/{page}")
        wide = driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= 391, page
    # Where there is no sidebar, the screens lead to each other.
    follow(driver, ".th-nav a[href$='deadletter/']")
    press(driver, "Requeue")
    assert "1 job is meant." in body(driver)


def test_what_somebody_opens_stays_open_while_the_page_renews_itself(browser, site):
    job = died("f1", max_attempts=1)
    requeue([job.pk])
    driver = browser()
    driver.get(f"{site}/admin/taskharbor/job/{job.pk}/change/")
    click(driver, ".th-attempt summary")
    Job.objects.filter(pk=job.pk).update(progress=71)
    until(lambda: "71 %" in body(driver))
    assert "Traceback: at line 7" in body(driver)
    focus = driver.execute_script("return document.activeElement.tagName")
    assert focus == "SUMMARY"
