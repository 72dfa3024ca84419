"""``amk generate``: streaming never shows half a character and loses nothing; bad prompts are refused before anything is loaded."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amk_core import cli
from amk_core.commands.generate import PromptError, TextStream, encode
from amk_core.importer import hub


class Bytes:
    """A tokenizer whose tokens are bytes; with ``strips`` it drops a leading space, as SentencePiece decoders do."""

    chat_template: str | None = None

    def __init__(self, strips: bool = False) -> None:
        self.strips = strips

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        text = bytes(ids).decode("utf-8", "replace")
        return text[1:] if self.strips and text.startswith(" ") else text

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [1] * add_special_tokens + list(text.encode())}

    def apply_chat_template(self, messages: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize
        assert add_generation_prompt
        return f"<user>{messages[0]['content']}<assistant>"


@given(st.text())
def test_what_is_streamed_is_the_text(text: str) -> None:
    out = io.StringIO(newline="")
    stream = TextStream(Bytes(), out, "before ")
    for byte in text.encode("utf-8", "surrogatepass"):
        stream(0, byte)
    stream.close()
    shown = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    assert out.getvalue() == (f"before {shown}\n" if text else "")


def test_no_half_character_is_ever_shown() -> None:
    out = io.StringIO()
    stream = TextStream(Bytes(), out)
    seen = []
    for byte in "aé€😀b".encode():
        stream(0, byte)
        seen.append(out.getvalue())
    assert seen == ["a", "a", "aé", "aé", "aé", "aé€", "aé€", "aé€", "aé€", "aé€😀", "aé€😀b"]


def test_a_character_cut_off_by_the_end_is_shown_at_the_end() -> None:
    out = io.StringIO()
    stream = TextStream(Bytes(), out)
    for byte in "a€".encode()[:-1]:
        stream(0, byte)
    assert out.getvalue() == "a"
    stream.close()
    assert out.getvalue() == "a\N{REPLACEMENT CHARACTER}\n"


def test_spaces_between_words_survive_a_decoder_that_strips_the_first() -> None:
    out = io.StringIO()
    stream = TextStream(Bytes(strips=True), out)
    for byte in b"one two  three":
        stream(0, byte)
    stream.close()
    assert out.getvalue() == "one two  three\n"


def test_chat_form_is_the_model_s_own_and_adds_no_second_start_token() -> None:
    tokenizer = Bytes()
    tokenizer.chat_template = "any"
    assert encode(tokenizer, "hi", chat=True) == list(b"<user>hi<assistant>")
    assert encode(tokenizer, "hi", chat=False) == [1, *b"hi"]


@pytest.mark.parametrize(("tokenizer", "chat"), [(None, False), (None, True), (Bytes(), True)])
def test_what_cannot_be_encoded_is_refused(tokenizer: Bytes | None, chat: bool) -> None:
    with pytest.raises(PromptError):
        encode(tokenizer, "hi", chat)


@pytest.mark.parametrize("prompt", ["", "  \n", "-"])
def test_an_empty_prompt_is_refused_before_anything_is_loaded(
    prompt: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cli.main(["generate", "/no/such/model", "--prompt", prompt]) == 2
    assert "the prompt is empty" in capsys.readouterr().err


@pytest.fixture
def smollm2() -> str:
    """The small trained model, where it is in the cache."""
    name = "smollm2-135m"
    if name not in {c.name for c in hub.cached()}:
        pytest.skip(f"needs {name} in the model cache; run: amk model fetch {name}")
    return name


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--context", "8", "--max-new-tokens", "9"], "--context"),
        (["--temperature", "-1"], "temperature"),
        (["--queues", "5000"], "1024"),
        (["--config", "speed=11"], "tiles_per_queue"),
    ],
)
def test_a_refused_request_prints_one_paragraph_and_no_text(
    smollm2: str, argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["generate", smollm2, "--prompt", "Hello", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err


def test_ctrl_c_stops_between_two_tokens(smollm2: str, tmp_path: Path, interruptible: None) -> None:
    """The signal arrives while the machine decodes: what is there stays, the process leaves with 130 and says so."""
    command = [
        sys.executable,
        "-m",
        "amk_core.cli",
        "generate",
        smollm2,
        "--prompt",
        "Count: one, two,",
        "--max-new-tokens",
        "1500",
    ]
    env = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    sampled = ["--temperature", "2", "--top-k", "500"]  # does not meet a stop token soon
    p = subprocess.Popen(command + sampled, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=tmp_path)
    try:
        assert p.stdout
        first = p.stdout.read(len("Count: one, two,") + 1)  # the prompt and something new
        p.send_signal(signal.SIGINT)
        rest, err = p.communicate(timeout=20)
    finally:
        p.kill()
    assert first.startswith(b"Count: one, two,")
    assert p.returncode == 130
    assert rest.endswith(b"\n")
    assert err.decode().strip() == "amk: stopped."
