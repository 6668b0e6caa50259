"""The site that `make docs` builds: whole, without a network, and fit for a phone and a desk."""

import functools
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import threading
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

ROOT = Path(__file__).parent.parent
CHROMIUM = shutil.which("chromium")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--enable-logging=stderr",
    # Whatever a page wants from elsewhere it does not get, and the browser says so.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
PATIENCE = 600  # seconds, for a machine that is doing other things as well

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None,
    reason="MkDocs is not installed: pip install 'pesky[docs]'",
)
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A fresh build, in which MkDocs has nothing to warn about."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert built.returncode == 0, built.stderr
    return folder


def pages_of(site):
    """Addresses below the root; the one for what is not found has no place of its own."""
    found = [path.relative_to(site).as_posix() for path in site.rglob("*.html")]
    return sorted(set(found) - {"404.html"})


class Elements(HTMLParser):
    """All elements of a page with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


# --- What is there --------------------------------------------------------------------------------


def test_every_page_of_the_docs_is_built_and_every_figure_shown(site):
    sources = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert {path.with_suffix(".html").as_posix() for path in sources} == set(pages_of(site))
    gallery = (site / "gallery.html").read_text(encoding="utf-8")
    shown = {entry.get("src") for tag, entry in Elements(gallery).found if tag == "img"}
    assert {f"figures/{path.name}" for path in (ROOT / "docs/figures").glob("*.png")} <= shown


def test_the_reference_has_all_public_names_and_commands(site):
    from pesky import online, quadratic, rule
    from pesky.cli import app

    for module in (online, quadratic, rule):
        name = module.__name__.removeprefix("pesky.")
        text = (site / f"api/{name}.html").read_text(encoding="utf-8")
        ids = {entry.get("id", "") for _, entry in Elements(text).found}
        shown = {one.rsplit(".", 1)[-1] for one in ids if one.startswith("pesky.")}
        assert set(module.__all__) - {"NUMERICS_VERSION"} <= shown, name
    text = (site / "api/torch.html").read_text(encoding="utf-8")
    assert 'id="pesky.torch.VSGD.minimize"' in text
    assert 'id="pesky.torch.bbprop"' in text
    text = (site / "api/command-line.html").read_text(encoding="utf-8")
    commands = [one.name for one in app.registered_commands]
    assert len(commands) > 3
    for command in commands:
        assert f'id="pesky-{command}"' in text


def test_the_code_that_the_theory_names_exists():
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "pesky").rglob("*.py"))
    defined = set(re.findall(r"^ *def (\w+)", sources, flags=re.MULTILINE))
    theory = (ROOT / "docs/theory.md").read_text(encoding="utf-8")
    places = re.findall(r"^\| `.*\| (.*) \|$", theory, flags=re.MULTILINE)  # last cells of the table
    places += re.findall(r"\((`\w+`(?:,\s`\w+`)*)\)", theory)  # and what stands in brackets
    named = {name for place in places for name in re.findall(r"`(\w+)`", place)}
    assert {"noise_ratio", "next_caution", "followed_scale"} <= named
    assert named <= defined, named - defined


def test_no_page_loads_anything_from_elsewhere(site):
    for page in (*pages_of(site), "404.html"):
        for tag, entry in Elements((site / page).read_text(encoding="utf-8")).found:
            loaded = [entry.get("src"), entry.get("srcset"), entry.get("data")]
            if tag in ("link", "use", "image"):
                loaded += [entry.get("href"), entry.get("xlink:href")]
            assert not [one for one in loaded if one and re.match(r"(?:https?:)?//", one)], (
                page,
                tag,
                entry,
            )
    for sheet in site.rglob("*.css"):
        addresses = re.findall(r"url\(['\"]?([^'\")]*)", sheet.read_text(encoding="utf-8"))
        assert not [one for one in addresses if re.match(r"(?:https?:)?//", one)], sheet


# --- In a browser ---------------------------------------------------------------------------------

# Opens every page in a frame of either width, because a window cannot be as narrow as a phone.
CHECKER = """<!doctype html><meta charset=utf-8><title>checker</title><body><script>
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const scrolls = (element) => {
  for (let one = element; one; one = one.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(one).overflowX)) return true;
  return false;
};
async function look(page, width) {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:900px;border:0`;
  frame.src = "/" + page;
  document.body.append(frame);
  await new Promise((done) => (frame.onload = done));
  const inside = frame.contentDocument;
  await pause(100);
  const images = [...inside.images];
  await Promise.all(images.map((one) => one.decode().catch(() => null)));
  const all = [...inside.querySelectorAll(".md-content *")];
  const found = {
    page, width, inner: frame.contentWindow.innerWidth,
    wide: inside.documentElement.scrollWidth,
    cut: all.filter((one) => {
      const box = one.getBoundingClientRect();
      return box.width && box.height && (box.right > width + 1 || box.left < -1) && !scrolls(one);
    }).map((one) => one.outerHTML.slice(0, 100)),
    broken: images.filter((one) => !one.naturalWidth).map((one) => one.src),
    links: [...inside.querySelectorAll("a[href]")].map((one) => one.getAttribute("href")),
    ids: [...inside.querySelectorAll("[id]")].map((one) => one.id),
    text: inside.querySelector(".md-content").innerText.length,
  };
  frame.remove();
  return found;
}
(async () => {
  const pages = await (await fetch("/checker/pages")).json();
  const found = [];
  for (const width of [390, 1200]) for (const page of pages) found.push(await look(page, width));
  await fetch("/checker/found", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


class Checked(SimpleHTTPRequestHandler):
    """Serves the site, the checker, and the list of pages; takes the result."""

    def do_GET(self):
        answers = {"/checker": CHECKER, "/checker/pages": json.dumps(self.server.pages)}
        if self.path in answers:
            kind = "text/html" if self.path == "/checker" else "application/json"
            self.answer(answers[self.path].encode(), kind)
        else:
            super().do_GET()

    def do_POST(self):
        self.server.found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(b"", "text/plain")
        self.server.done.set()

    def answer(self, body, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_error(self, format, *arguments):
        self.server.failed.append((self.path, format % arguments))

    def log_message(self, format, *arguments):
        pass


@pytest.fixture(scope="module")
def looked_at(site, tmp_path_factory):
    """What a browser found on all pages, what it logged, and what it asked for in vain."""
    folder = tmp_path_factory.mktemp("browser")
    log = folder / "log"
    handler = functools.partial(Checked, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, log.open("w") as messages:
        server.pages, server.failed = pages_of(site), []
        server.found, server.done = None, threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/checker"
        browser = subprocess.Popen(
            [
                *(CHROMIUM, *QUIET, f"--user-data-dir={folder / 'profile'}"),
                *("--window-size=1300,1000", "--remote-debugging-port=0", address),
            ],
            stdout=subprocess.DEVNULL,
            stderr=messages,
        )
        try:
            patience = PATIENCE
            while patience and not server.done.wait(1) and browser.poll() is None:
                patience -= 1
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()
    logged = log.read_text(encoding="utf-8", errors="replace")
    assert server.found is not None, logged[-2000:]
    return server.found, logged, server.failed


@in_a_browser
def test_every_page_fits_both_widths(site, looked_at):
    found, _, _ = looked_at
    assert len(found) == 2 * len(pages_of(site))
    for one in found:
        assert one["inner"] == one["width"]
        assert one["text"] > 200, one["page"]
        assert one["wide"] <= one["width"], (one["page"], one["width"])
        assert one["cut"] == [], (one["page"], one["width"])


@in_a_browser
def test_the_browser_has_nothing_to_say_and_finds_all_it_wants(looked_at):
    found, logged, failed = looked_at
    assert [line for line in logged.splitlines() if "CONSOLE" in line] == []
    assert [one for one in failed if "favicon.ico" not in one[0]] == []
    assert [one["broken"] for one in found if one["broken"]] == []


@in_a_browser
def test_no_link_is_dead(looked_at):
    found, _, _ = looked_at
    ids = {"/" + one["page"]: set(one["ids"]) for one in found}
    followed = 0
    for one in found:
        for link in one["links"]:
            target = urlsplit(urljoin(f"http://site/{one['page']}", link))
            if target.netloc != "site":
                assert target.scheme in ("http", "https"), link
                continue
            path = target.path + "index.html" if target.path.endswith("/") else target.path
            assert path in ids, (one["page"], link)
            if target.fragment:
                assert unquote(target.fragment) in ids[path], (one["page"], link)
            followed += 1
    assert followed > 100


SEARCH = """<script>
addEventListener("load", async () => {
  const field = document.querySelector("[data-md-component=search-query]");
  field.focus();
  field.value = "bbprop";
  for (let tries = 0; tries < 200; tries++) {
    field.dispatchEvent(new Event("keyup", {bubbles: true}));
    await new Promise((done) => setTimeout(done, 50));
    const results = document.querySelectorAll(".md-search-result__item a").length;
    if (results) { document.body.dataset.results = results; break; }
  }
});
</script></body>"""


@in_a_browser
def test_the_site_can_be_read_and_searched_as_plain_files(site, tmp_path):
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    page = copy / "index.html"
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", SEARCH), encoding="utf-8")
    shown = subprocess.run(
        [
            *(CHROMIUM, *QUIET, f"--user-data-dir={tmp_path / 'profile'}"),
            *("--virtual-time-budget=15000", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert "CONSOLE" not in shown.stderr
    assert re.search(r'<body[^>]* data-results="[1-9]', shown.stdout)
