"""A page in a real browser, in a frame as wide as a screen, and what a script in it finds."""

import json
import re
import shutil
import subprocess
from html import escape

CHROMIUM = shutil.which("chromium")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def probed(page, script, width, folder):
    """Return what `script`, the body of a function, returns in the page; no message may come meanwhile.

    In a frame, because a window of its own cannot be as narrow as a phone.
    """
    probe = (
        "<script>addEventListener('load', () => setTimeout(() => {"
        f"parent.document.body.dataset.probe = JSON.stringify((() => {{{script}}})());"
        "}, 100));</script></body>"
    )
    inside = escape(page.replace("</body>", probe), quote=True)
    frame = f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{inside}"></iframe>'
    path = folder / "framed.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><body>{frame}</body>", encoding="utf-8")
    options = (f"--user-data-dir={folder / 'profile'}", f"--window-size={width + 100},1000")
    waiting = ("--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom")
    result = subprocess.run(
        [CHROMIUM, *QUIET, *options, *waiting, path.as_uri()],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert "CONSOLE" not in result.stderr, result.stderr
    found = re.search(r'data-probe="(.*?)"', result.stdout)
    assert found, result.stdout[-500:]
    return json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&"))
