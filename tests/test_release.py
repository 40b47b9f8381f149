"""Tests that all files have the same version, repository address, license and Python versions."""

import re
import tomllib
from pathlib import Path

import fnopt

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _citation(key):
    return re.search(rf'^{key}: "?([^"\n]+)', (ROOT / "CITATION.cff").read_text(), re.M)[1]


def test_version_is_the_same_everywhere():
    assert "version" in PROJECT["dynamic"]  # hatchling reads fnopt.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", fnopt.__version__)
    assert _citation("version") == fnopt.__version__
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[:2] == ["Unreleased", fnopt.__version__]


def test_address_is_the_same_everywhere():
    repository = PROJECT["urls"]["Repository"]
    assert _citation("repository-code") == repository
    assert PROJECT["urls"]["Changelog"] == f"{repository}/blob/main/CHANGELOG.md"
    assert PROJECT["urls"]["Issues"] == f"{repository}/issues"
    assert re.findall(r"^git clone (\S+)$", (ROOT / "README.md").read_text(), re.M) == [repository]


def test_badges_show_the_classifiers_and_the_licence():
    badges = ROOT / "docs" / "_static"
    versions = [c.rpartition(" :: ")[2] for c in PROJECT["classifiers"]]
    versions = [v for v in versions if re.fullmatch(r"3\.\d+", v)]
    assert f">{' | '.join(versions)}<" in (badges / "python.svg").read_text()
    assert f">{PROJECT['license']}<" in (badges / "license.svg").read_text()
    assert _citation("license") == PROJECT["license"]


def test_links_of_the_readme_lead_to_files():
    text = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.S)
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert len(targets) > 5
    assert [t for t in targets if not (ROOT / t).exists()] == []
