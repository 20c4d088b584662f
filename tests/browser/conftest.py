"""A real browser, headless."""

import os
import shutil

import pytest
from django.contrib.auth import get_user_model
from django.contrib.sessions.backends.db import SessionStore

MISSING = "chromium and chromedriver are not installed: the tests in a browser are skipped."


def pytest_collection_modifyitems(items):
    """Say once why these are skipped; with TASKHARBOR_TEST_STRICT their absence is an error."""
    mine = [item for item in items if "tests/browser" in str(item.path)]
    if mine and not has_browser():
        if os.environ.get("TASKHARBOR_TEST_STRICT"):
            raise pytest.UsageError(MISSING)
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=MISSING))


def has_browser():
    try:
        import selenium  # noqa: F401
    except ImportError:
        return False
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


@pytest.fixture
def site(live_server):
    return live_server.url


@pytest.fixture(scope="session")
def started():
    """The browsers of this process, by whether they run scripts: to start one takes seconds."""
    drivers = {}
    yield drivers
    for driver in drivers.values():
        driver.quit()


@pytest.fixture
def browser(site, started):
    """Show a browser that somebody who may do everything has logged in with, else like new."""
    shown = set()

    def show_browser(*, javascript=True, dark=False):
        if javascript not in started:
            started[javascript] = start(javascript)
        shown.add(javascript)
        driver = started[javascript]
        features = [{"name": "prefers-color-scheme", "value": "dark"}] if dark else []
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        log_in(driver, site)
        return driver

    yield show_browser
    for javascript in shown:
        driver = started.pop(javascript)  # one that does not obey is not used again
        forget(driver, site)
        started[javascript] = driver


def start(javascript):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1360,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if not javascript:
        content = {"profile.managed_default_content_settings.javascript": 2}
        options.add_experimental_option("prefs", content)
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


def forget(driver, site):
    """Leave the page, and keep nothing of what was done there."""
    driver.get("about:blank")
    everything = {"origin": site, "storageTypes": "all"}
    driver.execute_cdp_cmd("Storage.clearDataForOrigin", everything)
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.get_log("browser")


def log_in(driver, site):
    user, _ = get_user_model().objects.get_or_create(
        username="operator", defaults={"is_staff": True, "is_superuser": True}
    )
    session = SessionStore()
    session["_auth_user_id"] = str(user.pk)
    session["_auth_user_backend"] = "django.contrib.auth.backends.ModelBackend"
    session["_auth_user_hash"] = user.get_session_auth_hash()
    session.create()
    driver.get(f"{site}/admin/login/")
    driver.add_cookie({"name": "sessionid", "value": session.session_key, "path": "/"})


def complaints(driver):
    """What the browser has to say about the pages; a missing favicon is the project's own."""
    return [
        entry["message"]
        for entry in driver.get_log("browser")
        if entry["level"] in ("SEVERE", "WARNING") and "favicon" not in entry["message"]
    ]
