"""Make restart.png, the picture in README: one cell in two kernels, as a browser shows it; and its texts.

    .venv/bin/python docs/images/restart.py

It needs Chromium (on Debian: `apt install chromium`). The first kernel starts with nothing; before the second
one starts, torch's cache folder and the temp folder are emptied.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter

PICTURE = Path(__file__).with_suffix(".png")
SIZE = (1000, 640)
"""Width and height in CSS pixels; the picture has twice as many of its own."""
LOAD = "%load_ext nbcache"
DEFINE = """import torch
from torch import nn

network = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 10))
images = torch.randn(64, 256, generator=torch.manual_seed(0))"""
RUN = """%%compile_cached network
with torch.no_grad():
    scores = network(images)"""
STYLE = """<style>
body { margin: 0 !important; padding: 12px 8px !important; }
.jp-Cell { padding: 2px 4px !important; }
</style>"""


def run(folder: Path, count: int) -> list[nbformat.NotebookNode]:
    """Run the cells in a separate kernel, whose temp folder is new; return them."""
    temporary = folder / f"tmp{count}"
    temporary.mkdir()
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("NBCACHE_", "TORCH"))
    }
    environ |= {
        "TMPDIR": str(temporary),
        "NBCACHE_DIR": str(folder / "nbcache"),
        "NBCACHE_LIVE": "off",
        "NBCACHE_AUDIT": "0",
    }
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in (LOAD, DEFINE, RUN)]
    )
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(folder), env=environ)
    shutil.rmtree(temporary, ignore_errors=True)
    return list(notebook.cells)


def main() -> None:
    """Run both kernels, and photograph what they show."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("there is no Chromium here; on Debian: apt install chromium")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        first, second = run(folder, 1), run(folder, 2)
        outputs = [output for cell in (*first, second[0], second[2]) for output in cell.outputs]
        texts = [output.text if "text" in output else output.data["text/plain"] for output in outputs]
        PICTURE.with_suffix(".txt").write_text("".join(f"{text.strip()}\n" for text in texts))
        says = [
            nbformat.v4.new_markdown_cell(text)
            for text in ("### The first run", "### After a restart, with all temporary files gone")
        ]
        page = nbformat.v4.new_notebook(cells=[says[0], *first, says[1], second[0], second[2]])
        html, _ = HTMLExporter(template_name="lab").from_notebook_node(page)
        (folder / "page.html").write_text(html.replace("</head>", f"{STYLE}</head>", 1))
        size = f"--window-size={SIZE[0]},{SIZE[1]}"
        options = ["--headless=new", "--no-sandbox", "--hide-scrollbars", "--force-device-scale-factor=2"]
        where = [
            size,
            f"--screenshot={PICTURE}",
            (folder / "page.html").as_uri(),
        ]
        subprocess.run([chromium, *options, *where], check=True, capture_output=True, timeout=120)
    print(PICTURE)


if __name__ == "__main__":
    main()
