"""
Check the package as its users get it.

    python .ci/package.py DIRECTORY

builds sdist and wheel, looks into both, installs the wheel in a new environment and starts a
project with it. Run from the root of the repository.
"""

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

PACKAGE = "taskharbor_django"
ALSO_SHIPPED = {".html", ".js", ".css", ".svg", ".mo", ".po", ".typed"}


def main(directory: Path) -> None:
    dist = directory / "dist"
    run(sys.executable, "-m", "build", "--outdir", dist)
    run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir())
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    inspect_wheel(wheel)
    inspect_sdist(sdist)
    python = new_environment(directory / "venv")
    run(python, "-m", "pip", "install", "--quiet", wheel)
    start_project(python, directory / "project")
    print(f"{wheel.name} installs, checks and migrates.")


def run(*command: object, cwd: Path | None = None) -> None:
    print("$", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, cwd=cwd)


def inspect_wheel(wheel: Path) -> None:
    """The wheel holds the whole package and nothing else."""
    names = set(zipfile.ZipFile(wheel).namelist())
    strangers = {name for name in names if not name.startswith((f"{PACKAGE}/", f"{PACKAGE}-"))}
    if strangers:
        sys.exit(f"The wheel holds what it should not: {sorted(strangers)}")
    source = {
        str(path)
        for path in Path(PACKAGE).rglob("*")
        if path.suffix in ALSO_SHIPPED | {".py"} and path.is_file()
    }
    if missing := source - names:
        sys.exit(f"The wheel lacks {sorted(missing)}")
    if f"{PACKAGE}/py.typed" not in names:
        sys.exit("The wheel lacks py.typed.")


def inspect_sdist(sdist: Path) -> None:
    """The sdist holds what a packager needs to run the tests."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"LICENSE", "README.md", "pyproject.toml", "tox.ini", "tests/conftest.py"}
    if missing := wanted - names:
        sys.exit(f"The sdist lacks {sorted(missing)}")


def new_environment(directory: Path) -> Path:
    venv.create(directory, clear=True, with_pip=True)
    return directory / "bin" / "python"


def start_project(python: Path, directory: Path) -> None:
    """Do what a user does first, on SQLite."""
    directory.mkdir()
    run(python, "-m", "django", "startproject", "harbor", directory)
    settings = directory / "harbor" / "settings.py"
    with settings.open("a") as file:
        file.write(f'\nINSTALLED_APPS += ["{PACKAGE}"]\n')
        file.write('DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}\n')
    for command in (
        ["check", "--fail-level", "ERROR"],
        ["makemigrations", "--check", "--dry-run"],
        ["migrate", "--verbosity", "0"],
        ["showmigrations", "taskharbor"],
    ):
        run(python, "-W", "error", "manage.py", *command, cwd=directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
