"""`docs/options.md` is what the definitions give."""

from tools import options


def test_every_option_names_its_type() -> None:
    text = options.PAGE.read_text("utf-8")
    assert "see the description" not in text
    for words in ("a path", "a list of names", "a list of paths", "a number", "a `Transform`"):
        assert f"| {words} |" in text


def test_the_page_is_up_to_date() -> None:
    assert options.PAGE.read_text("utf-8") == options.page()
