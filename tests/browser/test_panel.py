"""Panels in JupyterLab and Notebook, with a real kernel and a real browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nbcache.sharing.trust import spelled
from support import lab
from support.people import key_of

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
CELLS = (
    "%load_ext nbcache",
    SET_UP,
    "%nbcache panel",
    COMPILE,
    SLEEP,
    "print('free')",
    "scaled(x.double())",
    "%nbcache restore hers.nbcache",
    "%nbcache timeline",
    "%nbcache share",
)
PANEL, COMPILING, SLEEPING, FREE, OTHER, RESTORE, TIMELINE, SHARE = range(2, 10)
MANY = """import nbcache
from nbcache.core.model import Direction, Outcome
from nbcache.core.reports import Cell, GraphRecord
session = nbcache.session()
many = [GraphRecord(f"f{i}", f"{i}/0", Direction.FORWARD, Outcome.MISS, cell=Cell.of(f"{i // 7}", i // 7))
        for i in range(2000)]
type(session).graphs = property(lambda self: many)"""


def panel_of(page, index=PANEL):
    """Return what finds parts of the live panel of a cell."""
    return page.cell(index).locator("[class*=nbcache-live-]")


def saved_of(page, index=PANEL):
    """Return what finds parts of the static HTML of a cell."""
    return page.cell(index).locator("[class*=nbcache-saved-]")


def press(page, label, index=PANEL):
    panel_of(page, index).get_by_role("button", name=label, exact=True).click()


def opens(page):
    """Open the newest graph."""
    panel_of(page).locator("summary").get_by_text("scaled", exact=True).first.click()


def says(page, text, index=PANEL, *, seconds=30):
    """Wait until the live panel says so."""
    from playwright.sync_api import expect

    expect(panel_of(page, index)).to_contain_text(text, timeout=1000 * seconds)


def is_idle(page):
    """Wait until the live panel says that no cell runs."""
    from playwright.sync_api import expect

    live = panel_of(page).locator(".widget-html-content").nth(1)
    expect(live).to_have_text("no cell runs", timeout=60_000)


def is_static(page, said, index=PANEL):
    """Wait until a cell shows the last state as static HTML, and nothing else."""
    saved_of(page, index).get_by_text(said, exact=False).first.wait_for(state="visible")
    page.tab.wait_for_timeout(1500)  # a front end may still say that it finds no model
    assert saved_of(page, index).first.is_visible()
    cell = page.cell(index)
    assert not any(each.is_visible() for each in cell.get_by_text("model not found").all())
    assert not any(each.is_visible() for each in cell.get_by_text("Loading widget").all())
    assert not any(each.is_visible() for each in panel_of(page, index).all())


def the_panel_follows_a_compile_and_a_button_waits_for_its_end(in_lab):
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


def each_button_does_what_its_magic_does(in_lab):
    from playwright.sync_api import expect

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
    opens(in_lab)
    says(in_lab, re.compile("key: f"))
    press(in_lab, "show")
    panel_of(in_lab).get_by_text("guards:", exact=False).click()
    says(in_lab, "L['x']")
    panel_of(in_lab).get_by_text("generated code", exact=False).first.click()
    keyword = panel_of(in_lab).get_by_text("def", exact=True).first
    keyword.wait_for(state="visible")
    assert keyword.evaluate("(each) => getComputedStyle(each).color") == "rgb(156, 86, 225)"
    press(in_lab, "close")
    press(in_lab, "update")
    says(in_lab, "model.nbcache holds 1 graph")
    assert in_lab.path.with_suffix(".nbcache").exists()
    press(in_lab, "restore")
    says(in_lab, "restored 1 graph")
    press(in_lab, "share")
    says(in_lab, "%nbcache restore model.nbcache")
    says(in_lab, "%nbcache trust add")
    press(in_lab, "verify")
    says(in_lab, "sound; its signer: you")
    notebook = in_lab.path.read_bytes()
    press(in_lab, "attach")
    says(in_lab, "nbcache attach ")
    says(in_lab, "%nbcache snapshot notebook")
    assert in_lab.path.read_bytes() == notebook
    press(in_lab, "refresh")
    says(in_lab, "model.nbcache · ")
    url = panel_of(in_lab).get_by_placeholder("redis://host", exact=False)
    url.fill(f"redis://me:{SECRET}@127.0.0.1:1/0")
    press(in_lab, "connect")
    says(in_lab, re.compile("not done:.*next:", re.DOTALL))
    expect(url).to_have_value("")
    url.fill(str(in_lab.server.folder / "shared"))
    press(in_lab, "connect")
    says(in_lab, f"connected to {in_lab.server.folder}")
    press(in_lab, "disconnect")
    says(in_lab, "disconnected")
    panel_of(in_lab).get_by_title("open settings").click()
    panel_of(in_lab).get_by_placeholder("NAME=VALUE").fill("autosnapshot=on")
    press(in_lab, "set")
    says(in_lab, "autosnapshot is on for this kernel")
    says(in_lab, re.compile("SETTINGS.*autosnapshot=on"))
    panel_of(in_lab).get_by_title("close settings").click()
    panel_of(in_lab).get_by_title("open space").click()
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


def a_miss_shows_what_differs_before_and_now(in_lab):
    in_lab.run(OTHER)
    is_idle(in_lab)
    opens(in_lab)
    says(in_lab, re.compile("differs:.*input x.*f32.* before.*f64.* now", re.DOTALL))


def a_stranger_is_asked_about_and_ignored(in_lab, ada):
    from playwright.sync_api import expect

    ada.make("one")
    (in_lab.server.folder / "hers.nbcache").write_bytes(ada.snapshot.read_bytes())
    in_lab.run(RESTORE)  # which fails, since she is not trusted, and takes it in
    says(in_lab, spelled(key_of(ada)))
    says(in_lab, "1 signer not trusted")
    press(in_lab, "trust…")
    says(in_lab, "Trust this signer?")
    press(in_lab, "no")
    says(in_lab, "Nothing was done.")
    press(in_lab, "ignore")
    says(in_lab, "is ignored in this kernel")
    expect(panel_of(in_lab)).not_to_contain_text("1 signer not trusted")
    press(in_lab, "close")
    expect(panel_of(in_lab)).not_to_contain_text(spelled(key_of(ada)))


def the_timeline_is_shown_and_sharing_opens_a_panel_of_its_own(in_lab):
    from playwright.sync_api import expect

    in_lab.run(TIMELINE)
    timeline = in_lab.cell(TIMELINE)
    expect(timeline).to_contain_text("scaled")
    expect(timeline).to_contain_text("this one")
    assert timeline.locator("span[title]").count() > 3
    drawn = (Path(__file__).parents[2] / "docs" / "images" / "panel.txt").read_text().splitlines()
    labels = {*in_lab.labels(PANEL), *in_lab.labels(TIMELINE)}
    assert len(drawn) > 20 and {*drawn} <= labels, "run `make pictures`: the pictures have other labels"
    in_lab.run(SHARE)
    says(in_lab, "%nbcache restore model.nbcache", index=SHARE)
    says(in_lab, "PEOPLE", index=SHARE)
    assert "GRAPHS" not in panel_of(in_lab, SHARE).inner_text()


def it_can_be_used_by_keyboard(in_lab):
    toggle = panel_of(in_lab).get_by_title("open levels")
    toggle.focus()
    in_lab.tab.keyboard.press("Enter")
    says(in_lab, "not hit because")
    in_lab.tab.keyboard.press("Enter")
    panel_of(in_lab).get_by_title("open levels").wait_for()


def it_reads_in_both_themes_and_at_both_widths(in_lab):
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
    panel_of(in_lab).get_by_title("open settings").click()
    panel_of(in_lab).get_by_title("open space").click()
    for width in (600, 1400):
        in_lab.tab.set_viewport_size({"width": width, "height": 1000})
        if width == 600:
            in_lab.command("application:toggle-left-area")
        in_lab.tab.wait_for_timeout(500)
        panels = in_lab.tab.evaluate(
            """() => [...document.querySelectorAll('[class*=nbcache-live-]')].map((panel) => [
                panel.clientWidth,
                [panel, ...panel.querySelectorAll('div')].filter((each) => each.offsetParent
                    && each.clientWidth && each.scrollWidth > each.clientWidth + 1).length,
            ])"""
        )
        assert len(panels) == 2
        for room, wider in panels:  # nothing in it has to be scrolled sideways
            assert room > 300 and not wider, (width, panels)
    in_lab.command("application:toggle-left-area")
    panel_of(in_lab).get_by_title("close settings").click()
    panel_of(in_lab).get_by_title("close space").click()


def two_tabs_show_the_same_and_an_interrupt_lets_a_waiting_button_act(in_lab, open_page):
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


def the_saved_notebook_has_the_last_state_wherever_it_is_opened(in_lab, open_page):
    press(in_lab, "refresh")
    in_lab.tab.wait_for_timeout(1500)
    saved = in_lab.save()
    text = json.dumps(saved, ensure_ascii=False)
    assert SECRET not in text and "2 graphs · 0 of 2 hits" in text

    in_lab.shut_down()
    for front_end in ("lab", "notebook"):  # which start a kernel that knows nothing of it
        again = open_page(front_end, "model.ipynb")
        is_static(again, "2 graphs")
        again.cell(TIMELINE).get_by_text("Inductor", exact=False).first.wait_for(state="visible")
        is_static(again, "%nbcache restore model.nbcache", SHARE)
        again.shut_down()
        is_static(again, "2 graphs")
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
        is_static(stranger, "2 graphs")
        stranger.cell(TIMELINE).get_by_text("Inductor", exact=False).first.wait_for(state="visible")
        is_static(stranger, "%nbcache restore model.nbcache", SHARE)
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
    assert page.get_by_text("2 graphs", exact=False).first.is_visible()
    assert not page.get_by_text("model not found").count()
    page.close()


@LAB
def test_the_panel_in_one_session_of_jupyterlab(open_page, ada):
    """Each step begins where the last one ended."""
    in_lab = open_page("lab", "model.ipynb", *CELLS)
    for index in (0, 1, PANEL):
        in_lab.run(index)
    the_panel_follows_a_compile_and_a_button_waits_for_its_end(in_lab)
    each_button_does_what_its_magic_does(in_lab)
    a_miss_shows_what_differs_before_and_now(in_lab)
    a_stranger_is_asked_about_and_ignored(in_lab, ada)
    the_timeline_is_shown_and_sharing_opens_a_panel_of_its_own(in_lab)
    it_can_be_used_by_keyboard(in_lab)
    it_reads_in_both_themes_and_at_both_widths(in_lab)
    two_tabs_show_the_same_and_an_interrupt_lets_a_waiting_button_act(in_lab, open_page)
    the_saved_notebook_has_the_last_state_wherever_it_is_opened(in_lab, open_page)


@NOTEBOOK
def test_in_notebook_it_is_live_as_well_and_a_restart_leaves_the_last_state(open_page):
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
def test_of_two_thousand_graphs_the_newest_are_shown(open_page):
    from playwright.sync_api import expect

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
    panel_of(page, 3).get_by_text("and 1980 graphs before", exact=False).wait_for(state="visible")
    chosen = panel_of(page, 3).get_by_role("combobox").first
    chosen.select_option(label="1999/0 f1999")
    page.run(4)
    says(page, "and 1981 graphs before", index=3)
    # The list gets its options, and then its selection, after the text above it.
    expect(chosen.locator("option:checked")).to_have_text(re.compile("f1999$"))
