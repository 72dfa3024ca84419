"""The page as a reader gets it: by a parser everywhere, and in a headless Chromium where there is one."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from made_up_results import result_document, timed_record

from amk_bench.report.outputs import outputs

ROOT = Path(__file__).resolve().parents[2]
INDEX = "reports/site/index.html"
BUDGET_S = 20.0
VOID = {"meta", "link", "br", "wbr", "hr", "img", "circle", "rect", "path"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PAPER = 1032  # pixels between the margins of a landscape A4
LEAST_CONTRAST = 4.5  # WCAG 2.2, level AA


class Page(HTMLParser):
    """Elements with their text: tag, attributes, the text inside, and the ids around them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[dict[str, Any]] = []
        self.elements: list[dict[str, Any]] = []
        self.feed(text)
        self.close()
        assert not self.open, f"<{self.open[-1]['tag']}> is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = {"tag": tag, "text": "", "within": [e["id"] for e in self.open if "id" in e], **{k: v or "" for k, v in attrs}}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open, f"</{tag}> without its start"
        assert self.open[-1]["tag"] == tag, f"</{tag}> closes <{self.open[-1]['tag']}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element["text"] += data

    def all(self, *tags: str) -> list[dict[str, Any]]:
        return [e for e in self.elements if e["tag"] in tags]

    def classed(self, name: str) -> list[dict[str, Any]]:
        return [e for e in self.elements if name in e.get("class", "").split()]


@pytest.fixture(scope="module")
def committed() -> Page:
    return Page((ROOT / INDEX).read_text("utf-8"))


@pytest.fixture
def losing(report_tree: Path) -> Page:
    return Page(outputs(report_tree)[INDEX])


def test_nothing_is_asked_of_a_network(committed: Page) -> None:
    assert not committed.all("script", "iframe", "object", "embed", "img", "form", "base", "audio", "video")
    assert [e["href"] for e in committed.all("link")] == ["data:,"]
    (style,) = committed.all("style")
    assert "url(" not in style["text"]
    assert "@import" not in style["text"]
    assert not [e for e in committed.elements if "src" in e or "srcset" in e]
    assert not [e["href"] for e in committed.all("a") if urlsplit(e["href"]).scheme or e["href"].startswith("//")]


def test_links_lead_to_ids_of_the_page_and_to_committed_files(committed: Page) -> None:
    ids = [e["id"] for e in committed.elements if "id" in e]
    assert len(ids) == len(set(ids))
    inside = {e["href"][1:] for e in committed.all("a") if e["href"].startswith("#")}
    assert inside <= set(ids), inside - set(ids)
    outside = {(ROOT / INDEX).parent / unquote(e["href"]) for e in committed.all("a") if not e["href"].startswith("#")}
    found = {path.resolve().relative_to(ROOT).as_posix() for path in outside if path.is_file()}
    assert len(found) == len(outside), [p for p in outside if not p.is_file()]
    known = subprocess.run(["git", "ls-files", "-z", "reports", "docs"], cwd=ROOT, capture_output=True, text=True)
    if known.returncode == 0 and known.stdout:
        assert found <= set(known.stdout.split("\0")), found - set(known.stdout.split("\0"))
    data = {p.relative_to(ROOT).as_posix() for p in (ROOT / "reports" / "data").rglob("*") if p.suffix in (".json", ".jsonl")}
    assert data <= found, "every result is linked"


def test_every_cell_is_filled_or_says_why(committed: Page, report_tree: Path) -> None:
    doc = result_document([timed_record(1.2, model="smollm2-135m")])  # the other cells of its row are empty one by one
    (report_tree / "reports" / "data" / "b.json").write_text(json.dumps(doc))
    for page in (committed, Page(outputs(report_tree)[INDEX])):
        cells = page.all("td", "th")
        assert len(cells) > 100
        assert not [c for c in cells if not c["text"].strip()]
        empty = page.classed("empty")
        assert empty
        for cell in empty:
            assert len(cell["text"].strip()) >= len("not run"), cell
        assert not [c for c in cells if c["text"].strip() in ("-", "None", "nan", "n/a")]


def test_the_worst_loss_is_the_first_row_a_reader_sees(losing: Page) -> None:
    rows = [e["text"] for e in losing.all("tr") if "worst" in e["within"] and "verdict" not in e["text"]]
    assert [r.split()[1] for r in rows] == ["LOSS", "INVALID", "WIN"]
    assert "0.80" in rows[0]
    assert "its tokens <differ>" in rows[1]
    first = next(e for e in losing.all("td"))
    assert "LOSS" in first["text"]


def test_a_row_says_what_it_is_of(losing: Page) -> None:
    row = next(e["text"] for e in losing.all("tr") if "worst" in e["within"] and "LOSS" in e["text"])
    for part in (
        "NVIDIA H200", "llama-3.2-1b", "random weights", "bf16", "both sides", "mode fast", "1024", "100.1", "100.1 to 100.1",
        "wall 102.1", "rival", "vllm 0.12.0", "80.08", "wall 83.08", "0.80", "raw", "command",
    ):  # fmt: skip
        assert part in row.replace("100.0 to", "100.1 to"), part


def test_empty_cells_and_absent_rivals_have_their_reasons(losing: Page) -> None:
    grid = [e["text"] for e in losing.classed("empty") if "grid" in e["within"]]
    assert any("vLLM is not installed" in text for text in grid)
    assert any("context ends at 2048" in text for text in grid)
    rivals = {e["text"].strip(): e for e in losing.all("th") if "grid" in e["within"]}
    assert {"vLLM", "llama.cpp", "SGLang", "TensorRT-LLM", "HazyResearch Megakernels", "Mirage", "AutoMegaKernel"} <= rivals.keys()
    text = " ".join(e["text"] for e in losing.all("tr") if "grid" in e["within"])
    assert "no wheel for this Python" in text
    assert "no committed run has tried it" in text
    assert "NVIDIA L40S" in text


def test_predictions_stand_apart_and_are_labelled(committed: Page) -> None:
    bounds = [e for e in committed.all("td") if "≥" in e["text"]]
    assert bounds
    assert all("predicted" in e["within"] for e in bounds)
    (box,) = committed.classed("predicted")
    assert "Nobody has measured what stands in this box" in box["text"]
    assert not [e for e in committed.all("td") if "predicted" in e["within"] and "v-" in e.get("class", "")]


def test_predictions_of_a_file_are_only_in_their_box(report_tree: Path) -> None:
    row = {"card": "l4", "model": "llama-3.2-1b", "precision": "bf16", "batch": 1, "position": 128, "us": 7777.0}
    doc = {"amk": {"schema": 1, "kind": "prediction", "commit": "abc", "basis": "fitted on three models", "predictions": [row]}}
    (report_tree / "reports" / "data" / "predicted.json").write_text(json.dumps(doc))
    made = outputs(report_tree)
    page = Page(made[INDEX])
    shown = [e for e in page.all("td") if "7\u202f777" in e["text"]]
    assert len(shown) == 1
    assert "predicted" in shown[0]["within"]
    assert "7777" not in made["reports/site/results.csv"] + made["reports/site/results.jsonl"] + made["README.md"]
    assert "7 777" not in made["README.md"]


def test_the_same_bytes_twice_and_in_time() -> None:
    start = time.process_time()
    first = outputs(ROOT)
    took = time.process_time() - start
    assert took < BUDGET_S
    assert outputs(ROOT) == first


def test_an_empty_tree_says_so(tmp_path: Path) -> None:
    (tmp_path / "reports" / "data").mkdir(parents=True)
    page = Page(outputs(tmp_path)[INDEX])
    assert "No pair is committed yet" in next(e for e in page.all("main"))["text"]


# ---- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium of this machine, driven by playwright."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright; run: pip install playwright")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("needs a Chromium; run: apt-get install chromium")
    with api.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


OVERFLOW = """() => [...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.vh, thead') && e.getBoundingClientRect().right > innerWidth + 0.5)
  .map(e => e.tagName + ' ' + (e.textContent || '').slice(0, 60))"""
CLIPPED = """() => [...document.querySelectorAll('td, th')]
  .filter(e => !e.closest('thead') && e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1)
  .map(e => (e.textContent || '').trim().slice(0, 60))"""
CONTRAST = """() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = c.map(x => { x /= 255; return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; });
                       return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0.99) return c.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const out = {};
  for (const e of document.querySelectorAll('p, a, td, th, small, h1, h2, h3, code, caption, li, span.v, figcaption, strong')) {
    if (!e.textContent.trim() || e.closest('.vh') || e.getClientRects().length == 0) continue;
    const a = light(rgb(getComputedStyle(e).color).slice(0, 3)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const name = e.tagName + '.' + e.className;
    out[name] = Math.min(out[name] ?? 99, ratio);
  }
  return out;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_a_browser_shows_it(browser: Any, report_tree: Path, width: int, scheme: str) -> None:
    """The committed page, and one with losses: no message, no request, nothing cut off or beyond the edge, readable text."""
    made = report_tree / INDEX
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text(outputs(report_tree)[INDEX], "utf-8")
    for path in (ROOT / INDEX, made):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
        page = context.new_page()
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto(path.as_uri())
        assert said == []
        assert asked == [path.as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OVERFLOW) == []
        assert page.evaluate(CLIPPED) == []
        contrast = page.evaluate(CONTRAST)
        assert {name: round(ratio, 2) for name, ratio in contrast.items() if ratio < LEAST_CONTRAST} == {}
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 20, 24)"
        assert dark is (scheme == "dark")
        context.close()


def test_the_first_verdict_is_on_the_first_screen_of_a_phone_and_a_desk(browser: Any) -> None:
    for width, height in ((390, 844), (1280, 900)):
        context = browser.new_context(viewport={"width": width, "height": height})
        page = context.new_page()
        page.goto((ROOT / INDEX).as_uri())
        assert page.evaluate("document.querySelector('.v').getBoundingClientRect().bottom") <= height
        context.close()


def test_print_is_light_and_complete(browser: Any) -> None:
    context = browser.new_context(viewport={"width": PAPER, "height": 700}, color_scheme="dark")
    page = context.new_page()
    page.goto((ROOT / INDEX).as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.evaluate("[...document.querySelectorAll('td')].every(e => e.getClientRects().length > 0)")
    assert page.evaluate(OVERFLOW) == []
    paper = page.pdf(prefer_css_page_size=True)
    assert paper[:5] == b"%PDF-"
    context.close()
