"""Side-by-side measurements; nothing here is asserted in the tests."""
