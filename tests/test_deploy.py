"""deploy/: there is no Docker here, so files are parsed, their commands read by the code that would run them, and their
health check run outside a container."""

import json
import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import httpx
import pytest
import yaml
from api_server import Stub, serving
from test_docs import read_command

from arr_coc.cli import run
from arr_coc.serving.metrics import GAUGES, HELP

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("Dockerfile.*"), key=str)
PLAIN_IMAGE = re.compile(r"(?:[a-z0-9-]+/)?[a-z0-9-]+:[\w.-]+")  # no host of a registry, and never the newest


def instructions(path: Path) -> list[tuple[str, str]]:
    """(name, rest) of each instruction; lines that go on are joined."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(name, " ".join(rest.split())) for name, _, rest in (line.strip().partition(" ") for line in joined)]


def only(found: list[tuple[str, str]], name: str) -> str:
    (rest,) = [rest for one, rest in found if one == name]
    return rest


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.name)
def dockerfile(request):
    return instructions(request.param)


# ---------------------------------------------------------------- images


def test_there_is_one_for_each_kind():
    assert [path.suffix for path in DOCKERFILES] == [".cpu", ".cuda"]


def test_an_image_is_made_of_what_is_there(dockerfile):
    known = {"FROM", "ARG", "RUN", "WORKDIR", "COPY", "USER", "ENV", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in dockerfile} <= known
    assert PLAIN_IMAGE.fullmatch(only(dockerfile, "FROM"))
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for copied in [rest.split()[:-1] for name, rest in dockerfile if name == "COPY"]:
        assert all((ROOT / one).exists() and f"!{one}" in ignored for one in copied)
    assert not any(fnmatch("arr_coc/models/mini", line) for line in ignored if line not in ("*",))
    (installed,) = [rest for name, rest in dockerfile if name == "RUN" and "pip install" in rest]
    assert "-c constraints.txt" in installed
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [rest.partition("=")[2] for name, rest in dockerfile if name == "ARG" and rest.startswith("EXTRAS=")]
    assert set(extras[0].split(",")) <= project["optional-dependencies"].keys()
    version = re.search(r"\d+\.\d+", only(dockerfile, "FROM"))[0]
    assert project["requires-python"] == f">={version}"


def test_nobody_is_root_and_nobody_gets_in_without_a_key(dockerfile, monkeypatch, capsys):
    assert int(only(dockerfile, "USER")) >= 1000
    after = [name for name, _ in dockerfile][[name for name, _ in dockerfile].index("USER") :]
    assert not {"RUN", "COPY"} & set(after)
    assert not any("ARR_COC_API_KEY" in rest for name, rest in dockerfile if name in ("ENV", "ARG"))
    command = json.loads(only(dockerfile, "CMD"))
    assert json.loads(only(dockerfile, "ENTRYPOINT")) == ["arr-coc"]
    values = read_command(command)
    assert (values["host"], values["port"]) == ("0.0.0.0", int(only(dockerfile, "EXPOSE")))
    monkeypatch.delenv("ARR_COC_API_KEY", raising=False)
    assert run.run(command) == 3
    assert "set a key in ARR_COC_API_KEY" in capsys.readouterr().err


def test_the_health_check_knows_well_from_ill(dockerfile):
    """As it stands, but for the port; a server whose device is lost is ill, and so is none."""
    check = json.loads(only(dockerfile, "HEALTHCHECK").partition("CMD ")[2])
    port = json.loads(only(dockerfile, "CMD"))[4]
    assert check[:2] == ["python", "-c"]
    assert f":{port}/health" in check[2]

    def code(url: str) -> int:
        there = check[2].replace(f"http://127.0.0.1:{port}", url)
        clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        return subprocess.run([sys.executable, "-I", "-c", there], capture_output=True, env=clean).returncode

    with serving(Stub()) as (url, line):
        assert code(url) == 0
        line.lost = True
        assert code(url) != 0
    assert code(url) != 0


# ---------------------------------------------------------------- services


def filled(text: str) -> str:
    """Compose's variables, with what stands in for those that are not set."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    return re.sub(r"\$\{\w+:\?[^}]*\}", "a-long-secret", text)


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load(filled((DEPLOY / "compose.yaml").read_text()))


def test_services_are_for_this_machine_alone(compose):
    assert compose["services"].keys() == {"server", "prometheus", "grafana"}
    for name, service in compose["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "network_mode", "user"} & service.keys()
        assert PLAIN_IMAGE.fullmatch(service["image"])
        assert {one["source"] for one in service.get("configs", [])} <= compose["configs"].keys()
    assert all((DEPLOY / one["file"]).is_file() for one in compose["configs"].values())
    for variable in ("ARR_COC_API_KEY", "GRAFANA_PASSWORD"):
        assert f"${{{variable}:?" in (DEPLOY / "compose.yaml").read_text(), "without it nothing starts"


def test_the_server_is_started_with_words_that_it_knows(compose):
    server = compose["services"]["server"]
    values = read_command(server["command"])
    assert server["ports"] == [f"127.0.0.1:{values['port']}:{values['port']}"]
    for service in (server, yaml.safe_load((DEPLOY / "compose.cuda.yaml").read_text())["services"]["server"]):
        assert (ROOT / service["build"]["dockerfile"]).is_file()
        assert (DEPLOY / service["build"]["context"]).resolve() == ROOT


def test_prometheus_reads_the_metrics_with_the_key(compose):
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert read_command(compose["services"][host]["command"])["port"] == int(port)
    (secret,) = compose["services"]["prometheus"]["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    assert compose["secrets"][secret]["environment"] in compose["services"]["server"]["environment"]
    with serving(Stub(), key="a-long-secret", local=False) as (url, _):
        path = f"{url}{job['metrics_path']}"
        assert httpx.get(path).status_code == 401
        key = {"authorization": f"{job['authorization']['type']} a-long-secret", "host": target}
        assert "arr_coc_requests_total" in httpx.get(path, headers=key).text


# ---------------------------------------------------------------- the dashboard

DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_every_metric_of_the_dashboard_is_one_of_ours():
    known = {f"arr_coc_{name}" for name in (*HELP, *GAUGES)}
    used = {name for query in QUERIES for name in re.findall(r"arr_coc_\w+", query)}
    assert used == known, "every metric is shown, and no other"
    counters = {f"arr_coc_{name}" for name in HELP}
    for query in QUERIES:
        rated = set(re.findall(r"rate\((arr_coc_\w+)\[", query))
        assert rated == {name for name in re.findall(r"arr_coc_\w+", query) if name in counters}, query
        assert query.count("(") == query.count(")")
    labels = {
        label for query in QUERIES for group in re.findall(r"by \(([\w, ]+)\)", query) for label in group.split(", ")
    }
    assert labels == {"path", "status", "stage"}
    source = (ROOT / "arr_coc" / "serving").rglob("*.py")
    added = "".join(path.read_text() for path in source)
    assert all(re.search(rf"\.add\([^\n]*{label}=", added) for label in labels)


def test_the_dashboard_finds_its_source_and_has_no_panel_over_another(compose):
    (source,) = yaml.safe_load((DEPLOY / "grafana" / "datasource.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["datasource"]["uid"] == source["uid"]
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells
        assert max(x for x, _ in own) < 24
        cells |= own
    (provider,) = yaml.safe_load((DEPLOY / "grafana" / "dashboards.yaml").read_text())["providers"]
    targets = [one["target"] for one in compose["services"]["grafana"]["configs"]]
    assert any(Path(target).parent == Path(provider["options"]["path"]) for target in targets)
