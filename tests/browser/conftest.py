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


@pytest.fixture
def browser(site):
    """Open a browser that somebody who may do everything has logged in with."""
    from selenium import webdriver

    opened = []

    def open_browser(*, javascript=True, dark=False, size=(1360, 900)):
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.add_argument(f"--window-size={size[0]},{size[1]}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        if not javascript:
            content = {"profile.managed_default_content_settings.javascript": 2}
            options.add_experimental_option("prefs", content)
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        driver = webdriver.Chrome(options=options, service=service)
        opened.append(driver)
        if dark:
            features = [{"name": "prefers-color-scheme", "value": "dark"}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        log_in(driver, site)
        return driver

    yield open_browser
    for driver in opened:
        driver.quit()


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
