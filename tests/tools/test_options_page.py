"""`docs/options.md` is what the definitions give."""

from tools import options


def test_the_page_is_up_to_date() -> None:
    assert options.PAGE.read_text("utf-8") == options.page()
