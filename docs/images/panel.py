"""Make the pictures of docs/panels.md: JupyterLab in both themes, on pages 1400 and 600 pixels wide.

    .venv/bin/python docs/images/panel.py

It needs Chromium (on Debian: `apt install chromium`). A first kernel compiles, a second restores, with one
cell changed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support import lab  # noqa: E402
from support.front_door import environ_below  # noqa: E402

LOAD = "%load_ext nbcache"
DEFINE = """import torch
from torch import nn

torch.manual_seed(0)
network = torch.compile(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 10)))
images = torch.randn(64, 256)

@torch.compile
def step(weights, lr):
    return weights - lr * weights.sin()"""
TRAIN = "network(images).square().mean().backward()"
STEP = "step(images, 1e-3).sum()"
CHANGED = STEP.replace("1e-3", "3e-4")
PANEL = "%nbcache panel"
TIMELINE = "%nbcache timeline"
GRAPHS = "%nbcache graphs"
SETTINGS = "%nbcache panel settings"
CELLS = {"panel": 4, "timeline": 5, "graph": 6, "settings": 7}
"""Name of a picture → the cell that it shows."""
LIGHT = "panel", "timeline", "graph"
NARROW = "panel", "settings"
"""The names of the pictures of a wide page in the light theme, and of a narrow page in the dark theme."""


def run(server: lab.Server, browser: object, step: str) -> lab.Page:
    """Run the notebook in a separate kernel; return its page."""
    lab.save_notebook(
        server.folder / "model.ipynb", LOAD, DEFINE, TRAIN, step, PANEL, TIMELINE, GRAPHS, SETTINGS
    )
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, device_scale_factor=2)
    context.set_default_timeout(120_000)
    page = lab.Page(server, context.new_page(), "lab", "model.ipynb")
    for index in range(8):
        page.run(index)
    return page


def main() -> None:
    """Run both kernels, and photograph the panel of the second."""
    if lab.chromium() is None:
        raise SystemExit("there is no Chromium here; on Debian: apt install chromium")
    with tempfile.TemporaryDirectory() as scratch, lab.browser() as browser:
        folder = Path(scratch) / "notebooks"
        folder.mkdir()
        environ = environ_below(Path(scratch) / "environ")
        del environ["NBCACHE_PREWARM"], environ["NBCACHE_AUDIT"]
        server = lab.Server(folder, lab.jupyter_environ(environ))
        try:
            first = run(server, browser, STEP)
            panel = first.cell(4).locator("[class*=nbcache-live-]")
            panel.get_by_role("button", name="update", exact=True).click()
            panel.get_by_text("model.nbcache holds").wait_for()
            first.shut_down()
            first.tab.context.close()
            shutil.rmtree(environ["TMPDIR"])
            Path(environ["TMPDIR"]).mkdir()
            photograph(run(server, browser, CHANGED))
        finally:
            server.stop()


def live(page: lab.Page, name: str) -> object:
    """Return what finds parts of a panel."""
    return page.cell(CELLS[name]).locator("[class*=nbcache-live-]")


def photograph(page: lab.Page) -> None:
    """Open what is worth looking at, and make the pictures, and panel.txt with the labels in them."""
    page.save()
    panel, graphs = live(page, "panel"), live(page, "graph")
    panel.get_by_title("open next run").click()
    panel.get_by_title("open levels").click()
    graphs.get_by_role("button", name="show", exact=True).click()
    graphs.get_by_text("guards:", exact=False).click()
    graphs.get_by_text("generated code:", exact=False).first.click()
    refresh = panel.get_by_role("button", name="refresh")
    refresh.click()
    page.tab.wait_for_timeout(2500)
    refresh.blur()
    panel.locator("summary").get_by_text("step", exact=True).first.click()
    page.command("application:toggle-left-area")
    for width, theme, look, names in ((1400, "Light", "light", LIGHT), (600, "Dark", "narrow-dark", NARROW)):
        page.tab.set_viewport_size({"width": width, "height": 2600})
        page.theme(f"JupyterLab {theme}")
        for name in names:
            cell = page.cell(CELLS[name])
            cell.scroll_into_view_if_needed()
            page.tab.mouse.move(0, 0)
            page.tab.wait_for_timeout(1000)
            picture = Path(__file__).with_name(f"{name}-{look}.png")
            cell.screenshot(path=picture)
            print(picture)
    labels = [label for name in ("panel", "timeline") for label in page.labels(CELLS[name])]
    Path(__file__).with_suffix(".txt").write_text("".join(f"{label}\n" for label in labels))


if __name__ == "__main__":
    main()
