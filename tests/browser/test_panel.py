"""Panels in JupyterLab and Notebook, with a real kernel and a real browser.

The tests of one front end go on in one notebook, in order: each begins where the last one ended.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from support import lab

OpenPage = Callable[..., lab.Page]

pytestmark = pytest.mark.browser
LAB = pytest.mark.xdist_group("lab")
NOTEBOOK = pytest.mark.xdist_group("notebook")

SECRET = "hunter2-secret"
SET_UP = """import time, torch, torch._inductor.config
torch._inductor.config.cpp_cache_precompile_headers = False  # which takes longest, and is always the same
@torch.compile
def scaled(x):
    return x.sin() * 2
x = torch.ones(64)"""
COMPILE = "print(scaled(x).shape)\ntime.sleep(1)"
SLEEP = "time.sleep(4)"
CELLS = ("%load_ext nbcache", SET_UP, "%nbcache panel", COMPILE, SLEEP, "print('free')")
PANEL, COMPILING, SLEEPING, FREE = 2, 3, 4, 5
MANY = """import nbcache
from nbcache.core.model import Direction, Outcome
from nbcache.core.reports import Cell, GraphRecord
session = nbcache.session()
many = [GraphRecord(f"f{i}", f"{i}/0", Direction.FORWARD, Outcome.MISS, cell=Cell.of(f"{i // 7}", i // 7))
        for i in range(2000)]
type(session).graphs = property(lambda self: many)"""


@pytest.fixture(scope="module")
def in_lab(open_page: OpenPage) -> lab.Page:
    page = open_page("lab", "model.ipynb", *CELLS)
    for index in (0, 1, PANEL):
        page.run(index)
    return page


def panel_of(page: lab.Page, index: int = PANEL) -> Any:
    """Return what finds parts of the live panel of a cell."""
    return page.cell(index).locator("[class*=nbcache-live-]")


def saved_of(page: lab.Page, index: int = PANEL) -> Any:
    """Return what finds parts of the static HTML of a cell."""
    return page.cell(index).locator("[class*=nbcache-saved-]")


def press(page: lab.Page, label: str, index: int = PANEL) -> None:
    panel_of(page, index).get_by_role("button", name=label, exact=True).click()


def says(page: lab.Page, text: str | re.Pattern[str], index: int = PANEL, *, seconds: float = 30) -> None:
    """Wait until the live panel says so."""
    from playwright.sync_api import expect

    expect(panel_of(page, index)).to_contain_text(text, timeout=1000 * seconds)


def is_idle(page: lab.Page) -> None:
    """Wait until the live panel says that no cell runs."""
    from playwright.sync_api import expect

    live = panel_of(page).locator(".widget-html-content").nth(1)
    expect(live).to_have_text("no cell runs", timeout=60_000)


def is_static(page: lab.Page, said: str, index: int = PANEL) -> None:
    """Wait until a cell shows the last state as static HTML, and nothing else."""
    saved_of(page, index).get_by_text(said, exact=False).first.wait_for(state="visible")
    page.tab.wait_for_timeout(1500)  # a front end may still say that it finds no model
    assert saved_of(page, index).first.is_visible()
    cell = page.cell(index)
    assert not any(each.is_visible() for each in cell.get_by_text("model not found").all())
    assert not any(each.is_visible() for each in cell.get_by_text("Loading widget").all())
    assert not any(each.is_visible() for each in panel_of(page, index).all())


@LAB
def test_the_panel_follows_a_compile_and_a_button_waits_for_its_end(in_lab: lab.Page) -> None:
    is_idle(in_lab)
    says(in_lab, "nothing has compiled in this kernel yet")
    assert not saved_of(in_lab).first.is_visible()
    in_lab.tab.evaluate(
        """() => {
            window.updates = [];
            const live = document.querySelectorAll('[class*=nbcache-live-] .widget-html-content')[1];
            const note = () => window.updates.push(performance.now());
            new MutationObserver(note).observe(live, {childList: true});
        }"""
    )
    in_lab.run(COMPILING, wait=False)
    says(in_lab, re.compile(r"In\[4\] runs, .*compiling scaled"))
    says(in_lab, "a button that is pressed now acts at its end")
    assert panel_of(in_lab).get_by_placeholder("redis://host", exact=False).is_disabled()
    press(in_lab, "stats")
    says(in_lab, re.compile("tracing|generating code|building kernels"))
    assert "nbcache stats" not in panel_of(in_lab).inner_text()
    says(in_lab, "nbcache stats", seconds=120)
    is_idle(in_lab)
    says(in_lab, "1 graph · 0 of 1 hits")
    updates = in_lab.tab.evaluate("() => window.updates")
    seconds = (updates[-1] - updates[0]) / 1000
    assert 3 < len(updates) <= 5.5 * seconds + 2, f"{len(updates)} updates in {seconds:.1f} s"


@LAB
def test_each_button_does_what_its_magic_does(in_lab: lab.Page) -> None:
    for label, said in (
        ("why", "nbcache why"),
        ("timeline", "nbcache timeline"),
        ("doctor", "nbcache doctor"),
        ("stats", "nbcache stats"),
    ):
        press(in_lab, label)
        says(in_lab, said)
    press(in_lab, "close")
    in_lab.tab.wait_for_function(
        "() => !document.querySelector('[class*=nbcache-live-]').innerText.includes('nbcache stats')"
    )
    panel_of(in_lab).get_by_title("open scaled", exact=False).click()
    says(in_lab, re.compile("key: f"))
    panel_of(in_lab).get_by_title("close scaled", exact=False).click()
    press(in_lab, "update")
    says(in_lab, "model.nbcache holds 1 graph")
    assert in_lab.path.with_suffix(".nbcache").exists()
    press(in_lab, "restore")
    says(in_lab, "restored 1 graph")
    press(in_lab, "share")
    says(in_lab, "%nbcache restore model.nbcache")
    says(in_lab, "%nbcache trust add")
    press(in_lab, "refresh")
    says(in_lab, "model.nbcache · ")
    url = panel_of(in_lab).get_by_placeholder("redis://host", exact=False)
    url.fill(f"redis://me:{SECRET}@127.0.0.1:1/0")
    press(in_lab, "connect")
    says(in_lab, re.compile("not done:.*next:", re.DOTALL))
    assert url.input_value() == ""
    url.fill(str(in_lab.server.folder / "shared"))
    press(in_lab, "connect")
    says(in_lab, "connected to")
    press(in_lab, "disconnect")
    says(in_lab, "disconnected")
    panel_of(in_lab).get_by_title("open settings").click()
    chosen = panel_of(in_lab).get_by_role("combobox")
    in_lab.tab.wait_for_timeout(300)
    names = next(each for each in chosen.all() if "autosnapshot" in each.inner_text())
    names.select_option("autosnapshot")
    says(in_lab, "%nbcache config autosnapshot=off")  # as it is
    next(each for each in chosen.all() if each.inner_text().split() == ["on", "off"]).select_option("on")
    says(in_lab, "%nbcache config autosnapshot=on")
    press(in_lab, "set")
    says(in_lab, "autosnapshot is on for this kernel")
    says(in_lab, re.compile("SETTINGS.*autosnapshot=on"))
    panel_of(in_lab).get_by_title("close settings").click()
    panel_of(in_lab).get_by_title("open space").click()
    says(in_lab, "model.ipynb (this notebook)")
    press(in_lab, "this notebook…")
    says(in_lab, "This would be removed: 1 graph")
    press(in_lab, "no")
    says(in_lab, "Nothing was done.")
    press(in_lab, "all…")
    says(in_lab, "This would be removed: all of the local store")
    press(in_lab, "yes")
    says(in_lab, re.compile(r"removed \d+ entries from the local store"))
    press(in_lab, "close")
    panel_of(in_lab).get_by_title("close space").click()


@LAB
def test_it_can_be_used_by_keyboard(in_lab: lab.Page) -> None:
    toggle = panel_of(in_lab).get_by_title("open levels")
    toggle.focus()
    in_lab.tab.keyboard.press("Enter")
    says(in_lab, "torch's own folder")
    in_lab.tab.keyboard.press("Enter")
    panel_of(in_lab).get_by_title("open levels").wait_for()


@LAB
def test_it_reads_in_both_themes_and_at_both_widths(in_lab: lab.Page) -> None:
    for theme, dark in (("JupyterLab Dark", True), ("JupyterLab Light", False)):
        in_lab.theme(theme)
        colours = in_lab.tab.evaluate(
            """() => {
                const panel = document.querySelector('[class*=nbcache-live-]');
                const shown = [...panel.querySelectorAll('.widget-html-content, button')];
                return shown.filter((each) => each.innerText.trim() && each.offsetParent)
                    .map((each) => getComputedStyle(each).color);
            }"""
        )
        lights = [sum(map(int, re.findall(r"\d+", each)[:3])) / 765 for each in colours]
        assert len(lights) > 10 and all((light > 0.5) == dark for light in lights), (theme, lights)
    for width in (600, 1400):
        in_lab.tab.set_viewport_size({"width": width, "height": 1000})
        if width == 600:
            in_lab.command("application:toggle-left-area")
        in_lab.tab.wait_for_timeout(500)
        wide, room = in_lab.tab.evaluate(
            """() => {
                const panel = document.querySelector('[class*=nbcache-live-]');
                return [panel.scrollWidth, panel.clientWidth];
            }"""
        )
        assert room > 300 and wide <= room + 1, (width, wide, room)
    in_lab.command("application:toggle-left-area")


@LAB
def test_two_tabs_show_the_same_and_an_interrupt_lets_a_waiting_button_act(
    in_lab: lab.Page, open_page: OpenPage
) -> None:
    in_lab.save()
    other = open_page("notebook", "model.ipynb")
    is_idle(other)
    in_lab.run(SLEEPING, wait=False)
    says(other, re.compile(r"In\[\d+\] runs"))
    press(other, "why")
    other.tab.wait_for_timeout(500)
    in_lab.tab.evaluate(
        f"async () => {{ await ({lab._PANEL}).context.sessionContext.session.kernel.interrupt(); }}"
    )
    for page in (other, in_lab):
        says(page, "nbcache why")
        is_idle(page)
    other.tab.close()


@LAB
def test_the_saved_notebook_has_the_last_state_wherever_it_is_opened(
    in_lab: lab.Page, open_page: OpenPage
) -> None:
    press(in_lab, "refresh")
    in_lab.tab.wait_for_timeout(1500)
    saved = in_lab.save()
    text = json.dumps(saved, ensure_ascii=False)
    assert SECRET not in text and "1 graph · 0 of 1 hits" in text

    in_lab.shut_down()
    for front_end in ("lab", "notebook"):  # which start a kernel that knows nothing of it
        again = open_page(front_end, "model.ipynb")
        is_static(again, "1 graph")
        again.shut_down()
        is_static(again, "1 graph")
        if front_end == "notebook":
            again.run(0)
            again.run(PANEL)
            is_idle(again)
        again.tab.close()

    for front_end in ("lab", "notebook"):
        name = f"untrusted-{front_end}.ipynb"
        saved["cells"][0]["source"] = f"# from somebody else, {front_end}"
        (in_lab.server.folder / name).write_text(json.dumps(saved))
        stranger = open_page(front_end, name)
        is_static(stranger, "1 graph")
        stranger.tab.close()

    done = subprocess.run(
        [sys.executable, "-m", "nbconvert", "--to", "html", "--stdout", str(in_lab.path)],
        env=lab.jupyter_environ(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    page = in_lab.tab.context.new_page()
    page.route("**/*", lambda route: route.abort())  # what nbconvert's own page asks for
    page.set_content(done.stdout, wait_until="domcontentloaded")
    assert page.get_by_text("1 graph", exact=False).first.is_visible()
    assert not page.get_by_text("model not found").count()
    page.close()


@NOTEBOOK
def test_in_notebook_it_is_live_as_well_and_a_restart_leaves_the_last_state(open_page: OpenPage) -> None:
    page = open_page("notebook", "other.ipynb", *CELLS)
    for index in (0, 1, PANEL):
        page.run(index)
    is_idle(page)
    page.run(SLEEPING, wait=False)
    says(page, re.compile(r"In\[4\] runs, \d"))
    press(page, "doctor")
    says(page, "nbcache doctor")
    page.run(PANEL)
    is_idle(page)
    page.restart()
    is_static(page, "nothing has compiled")
    for index in (0, 1, PANEL):
        page.run(index)
    is_idle(page)


@NOTEBOOK
def test_two_thousand_graphs_open_and_are_paged(open_page: OpenPage) -> None:
    page = open_page(
        "lab",
        "many.ipynb",
        "%load_ext nbcache",
        "%nbcache panel space",
        MANY,
        "%nbcache graphs",
        "many.append(many[0])",
    )
    for index in (0, 1, 2):
        page.run(index)
    page.run(3, wait=False)
    panel_of(page, 3).get_by_text("1 to 10 of 2000").wait_for(state="visible")
    panel_of(page, 3).get_by_title("older graphs").click()
    says(page, "11 to 20 of 2000", index=3)
    chosen = panel_of(page, 3).get_by_role("combobox")
    chosen.nth(0).select_option("miss (2000)")
    says(page, "1 to 10 of 2000", index=3)
    chosen.nth(1).select_option("by function")
    says(page, "f1000", index=3)
    panel_of(page, 3).get_by_title("older graphs").click()
    says(page, "11 to 20 of 2000", index=3)
    page.run(4)
    says(page, "11 to 20 of 2001", index=3)
    assert chosen.nth(0).evaluate("(each) => each.selectedOptions[0].text") == "miss (2001)".replace(
        " ", "\N{NO-BREAK SPACE}"
    )
