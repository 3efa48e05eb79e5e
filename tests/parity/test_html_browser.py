"""The page in Chromium: quick with thousands of rows, usable by keyboard, readable."""

import json
import random
import time

import pytest

from parity.core.measurements import Error, Metrics
from parity.core.pair import Rung
from parity.core.verdicts import Coverage, Fault, Row
from parity.report import Report
from tools.browser import chromium, missing, prefer

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

ROWS = 5000

CONTRASTS = """
const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) =>
  0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
function ground(element) {
  for (let one = element; one; one = one.parentElement) {
    const colour = parse(getComputedStyle(one).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return parse(getComputedStyle(document.documentElement).backgroundColor);
}
const found = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own || !element.checkVisibility() || element.closest("script, style")) continue;
  const svg = element instanceof SVGElement;
  const style = getComputedStyle(element);
  const [a, b] = [parse(svg ? style.fill : style.color), ground(element)].map(light);
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  found.push([ratio, element.tagName, element.className.baseVal || element.className,
              element.textContent.slice(0, 40)]);
}
return found;
"""


def some_rows():
    draw = random.Random(0)
    for at in range(ROWS):
        error = 10 ** draw.uniform(-9, -5)
        path = f"encoder.blocks.{at // 500}.resnets.{at // 50 % 10}.conv{at % 5}"
        free = Metrics(error, error, error, error, error, error, error, 2, 1, 0.5, (0, 1, 2), 0)
        yield Row(
            "conv", f"case {at // 2000}", path, path, f"Conv{at % 5}d", at // 5, "",
            (1, 9, 64, 64, 128), "float32", free, Error(error, error, 0),
            Error(error, error, 0, error / 3, 0.7), 2.0, "perfect",
            "WARN" if at == 4321 else "PASS", "R 3.4 > 3" if at == 4321 else "", at, -1,
        )  # fmt: skip


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    rows = tuple(some_rows())
    coverage = Coverage(1, ("encoder",), {}, (), {}, ROWS, ROWS)
    environment = {"command": "parity run", "commit": None}
    rungs = (Rung("conv", ("Conv0d",), 1e-3),)
    report = Report("large", rows, (), coverage, environment, {}, rungs)
    path = tmp_path_factory.mktemp("large") / "report.html"
    report.to_html(path)
    return path


@pytest.fixture(scope="module")
def small(faulty, tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "report.html"
    faulty.to_html(path)
    return path


@pytest.fixture(scope="module")
def driver():
    with chromium() as driver:
        yield driver


def find(driver, selector):
    return driver.find_element("css selector", selector)


def opened(driver, path):
    """The page, and what it complains of."""
    driver.get(path.as_uri())
    complaints = driver.get_log("browser")
    assert not complaints
    return driver


def shown(driver, column):
    """The cells of a column of the table."""
    return driver.execute_script(
        "const table = document.getElementById('table');"
        "const heads = [...table.tHead.rows[0].cells];"
        "const at = heads.findIndex(th => th.dataset.name === arguments[0]);"
        "return [...table.tBodies[0].rows].filter(row => !row.classList.contains('more'))"
        "  .map(row => row.cells[at].textContent)", column,
    )  # fmt: skip


def press(driver, *keys):
    """Keys, wherever the focus is."""
    from selenium.webdriver import ActionChains

    ActionChains(driver, duration=0).send_keys(*keys).perform()


def test_thousands_of_rows_open_and_filter_at_once(driver, large):
    assert large.stat().st_size < 5e6
    best = float("inf")
    for _ in range(3):  # the machine may be busy
        opened(driver, large)
        loaded, filtered = driver.execute_script(
            "const start = performance.now(), search = document.getElementById('search');"
            "search.value = 'blocks.8 warn'; search.dispatchEvent(new Event('input'));"
            "document.body.getBoundingClientRect();"
            "const [page] = performance.getEntriesByType('navigation');"
            "return [page.loadEventEnd, performance.now() - start]"
        )
        best = min(best, loaded + filtered)
    assert best < 2000  # ms
    assert find(driver, "#count").text == "1 of 5,000 rows"
    assert shown(driver, "verdict") == ["WARN"]
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_the_table_is_sorted_paged_and_opened_by_keyboard(driver, large):
    from selenium.webdriver.common.keys import Keys

    opened(driver, large)
    assert len(shown(driver, "path")) == 100
    header = find(driver, "th[data-name='rel_l2']")
    driver.execute_script("arguments[0].focus()", header.find_element("css selector", "button"))
    assert header.get_attribute("aria-sort") == "none"
    press(driver, Keys.ENTER)
    assert header.get_attribute("aria-sort") == "descending"
    errors = [float(text) for text in shown(driver, "rel_l2")]
    assert errors == sorted(errors, reverse=True)
    press(driver, Keys.SPACE)
    assert header.get_attribute("aria-sort") == "ascending"
    assert float(shown(driver, "rel_l2")[0]) < min(errors)
    press(driver, Keys.ENTER)
    assert header.get_attribute("aria-sort") == "none"
    assert shown(driver, "call")[0] == "0"
    driver.execute_script("document.querySelector('#table tbody button').focus()")
    press(driver, Keys.ENTER)
    more = find(driver, "tr.more")
    assert "1x9x64x64x128" in more.text
    press(driver, Keys.ENTER)
    assert not driver.find_elements("css selector", "tr.more")
    driver.execute_script("document.getElementById('next').focus()")
    press(driver, Keys.ENTER)
    assert find(driver, "#page").text == "page 2 of 50"
    find(driver, "#verdict").send_keys("WARN")
    assert shown(driver, "verdict") == ["WARN"]


def test_the_chart_by_keyboard(driver, small):
    from selenium.webdriver.common.keys import Keys

    opened(driver, small)
    call = find(driver, "#call")
    assert find(driver, "#call-text").text.startswith("stem, call 0")
    call.send_keys(Keys.HOME, Keys.END)
    assert find(driver, "#call-text").text.startswith("<root>, call 0")
    # from a fault to its rows
    driver.execute_script("document.querySelector('#fault-1 button').focus()")
    press(driver, Keys.ENTER)
    assert set(shown(driver, "path")) == {"stem"}
    assert driver.execute_script("return document.activeElement.id") == "search"


COLOURS = """
const canvas = document.querySelector(arguments[0]);
const { width, height } = canvas;
const copy = Object.assign(document.createElement("canvas"), { width, height });
const context = copy.getContext("2d", { willReadFrequently: true });
context.drawImage(canvas, 0, 0);
const { data } = context.getImageData(0, 0, width, height);
const found = new Set();
for (let at = 0; at < data.length; at += 4)
  if (data[at + 3] === 255)
    found.add("#" + [0, 1, 2].map((i) => data[at + i].toString(16).padStart(2, "0")).join(""));
return [[...found], ["free", "inclusive", "exclusive", "bad"].map(
  (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`))];
"""


def mark(driver):
    """Where the first fault stands over the chart, in pixels."""
    return float(find(driver, "#chart a.mark").value_of_css_property("left").removesuffix("px"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_chart_and_the_error_maps_are_drawn_in_the_colours_of_the_page(driver, small, scheme):
    prefer(driver, scheme)
    opened(driver, small)
    drawn, lines = driver.execute_script(COLOURS, "#chart canvas")
    assert set(lines) <= set(drawn)
    heat, _ = driver.execute_script(COLOURS, ".map .heat canvas")
    assert heat
    assert len(driver.find_elements("css selector", ".map .bars canvas")) > 3
    other = {"light": "dark", "dark": "light"}[scheme]
    prefer(driver, other)
    time.sleep(0.3)  # the chart follows
    drawn, changed = driver.execute_script(COLOURS, "#chart canvas")
    assert set(changed) <= set(drawn)
    assert not set(changed) & set(lines)


def test_the_chart_zooms_around_the_call(driver, large, small):
    opened(driver, small)
    call, before = find(driver, "#call"), mark(driver)
    assert call.get_attribute("value") == "0"
    find(driver, "#zoom-in").click()
    assert mark(driver) > 1.5 * before
    find(driver, "#zoom-out").click()
    assert mark(driver) == pytest.approx(before, abs=1)
    opened(driver, large)
    for width in (390, 1280):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        time.sleep(0.2)  # the chart follows
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        assert find(driver, "#chart canvas").size["width"] > 0.85 * width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_is_readable(driver, small, scheme):
    prefer(driver, scheme)
    opened(driver, small)
    driver.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
    found = driver.execute_script(CONTRASTS)
    assert len(found) > 200
    assert not [one for one in found if one[0] < 4.5]
    page = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert page == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]


def test_what_hostile_names_hold_is_not_run(driver, tmp_path):
    evil = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 1'>"
    (row, *_) = some_rows()
    row = Row(**(vars(row) | {"path": evil, "kind": evil, "verdict": "FAIL", "reason": evil}))
    report = Report(
        evil, (row,), (Fault(evil, 0, "", row.case, evil, evil),),
        Coverage(1, (evil,), {}, (evil,), {}, 1, 1), {"command": evil, "commit": evil}, {},
    )  # fmt: skip
    report.to_html(tmp_path / "evil.html")
    opened(driver, tmp_path / "evil.html")
    find(driver, "#table tbody button").click()
    time.sleep(0.1)  # an image that fails to load says so later
    assert driver.execute_script("return window.evil") is None
    assert evil in find(driver, "#table tbody").text.replace("\n", "")
    assert json.loads(find(driver, "#data").get_attribute("textContent"))
